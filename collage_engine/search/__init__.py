"""The search for the least-cost cover: exact, with regrets and verdicts.

Imports only ``records``. The public functions are in :mod:`collage_engine.search.api`
(``solve``, ``k_best``, ``check``), the problem's exact meaning in
:mod:`collage_engine.search.problem`, the design of the search in
:mod:`collage_engine.search.state_space` and :mod:`collage_engine.search.label_setting`.
"""
