"""Shows the desktop: a window onto an engine in another process, which computes everything.

* ``document``: what is known of one open document, one part per subject (selection, costs, pins,
  shown placement, runs, execution, comparison, questions), without widgets.
* ``document_window``: the page of one document: its widgets, and a controller each for picture,
  pins, runs and export.
* ``main_window``: the tabs, the engine behind them, recovery copies, actions, menus and toolbar.
* ``graph_view``: the graph on the screen: arrays for painting, one painter, gestures, minimap.
* ``panels``: everything around the graph; each panel listens to the parts of a document.

``theme`` has the colours, and the units from which distances, delays and lengths of texts follow.
Requests go to the engine through ``engine_client``; answers and
notifications come back through the parts, whose signals the panels and controllers follow.
"""
