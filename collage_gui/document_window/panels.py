"""Makes all panels of one document."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtGui import QAction

from collage_gui.document.document import Document
from collage_gui.panels.log import LogPanel
from collage_gui.panels.node import NodePanel
from collage_gui.panels.outline import Outline
from collage_gui.panels.partitions import PartitionsPanel
from collage_gui.panels.pins import PinsPanel
from collage_gui.panels.run_settings import RunSettingsPanel
from collage_gui.panels.runs import RunsPanel
from collage_gui.preferences import Preferences
from collage_gui.theme import Theme


class Panels:
    """Makes the panels; each one listens to the document by itself."""

    def __init__(
        self,
        document: Document,
        theme: Theme,
        preferences: Preferences,
        actions: Mapping[str, QAction],
    ) -> None:
        self.partitions = PartitionsPanel(document, theme)
        self.pins = PinsPanel(document, theme, actions)
        self.node = NodePanel(document, theme, actions)
        self.runs = RunsPanel(document, theme, actions)
        self.outline = Outline(document)
        """Stands beside the graph where it is wanted, and not among the tabs."""
        self.run_settings = RunSettingsPanel(document, preferences, actions)
        self.tabs = {
            "Partitions": self.partitions,
            "Node": self.node,
            "Pins": self.pins,
            "Runs": self.runs,
        }
        """The panels beside the graph, by what their tabs are called."""
        self.log = LogPanel(document.log, theme)
        """Stands in a window of its own, like the settings of the next run."""
