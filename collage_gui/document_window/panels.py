"""Makes all panels of one document."""

from __future__ import annotations

from collage_gui.document.document import Document
from collage_gui.document_window.docks import PanelPlace
from collage_gui.panels.candidates import CandidatesPanel
from collage_gui.panels.inside import InsidePanel
from collage_gui.panels.log import LogPanel
from collage_gui.panels.model_tree import ModelTree
from collage_gui.panels.partitions import PartitionsPanel
from collage_gui.panels.pins import PinsPanel
from collage_gui.panels.run_settings import RunSettingsPanel
from collage_gui.panels.runs import RunsPanel
from collage_gui.panels.why import WhyPanel
from collage_gui.preferences import Preferences
from collage_gui.theme import Theme


class Panels:
    """Makes the panels; each one listens to the document by itself."""

    def __init__(self, document: Document, theme: Theme, preferences: Preferences) -> None:
        self.partitions = PartitionsPanel(document, theme)
        self.tree = ModelTree(document)
        self.pins = PinsPanel(document, theme)
        self.run_settings = RunSettingsPanel(document, preferences)
        self.candidates = CandidatesPanel(document, theme)
        self.why = WhyPanel(document, theme)
        self.inside = InsidePanel(document, theme)
        self.runs = RunsPanel(document, theme)
        self.log = LogPanel(document.log, theme)

    def tables(self) -> dict[str, str]:
        """Returns every table's CSV text by name."""
        self.runs.in_model.refresh(self.runs.document.runs.shown_or_last())
        self.runs.roofline.refresh()
        self.runs.memory.refresh()
        return {
            "partitions": self.partitions.model.as_csv(),
            "candidates": self.candidates.model.as_csv(),
            "pins": self.pins.model.as_csv(),
            "in-model": self.runs.in_model.rows_model.as_csv(),
            "roofline": self.runs.roofline.model.as_csv(),
            "memory": self.runs.memory.by_partition.as_csv(),
            "changes": self.runs.changes.model.as_csv(),
        }

    def places(self) -> tuple[PanelPlace, ...]:
        """Return the panels with their keys and the labels of their tabs."""
        return (
            PanelPlace("partitions", "Partitions", self.partitions),
            PanelPlace("model", "Model", self.tree),
            PanelPlace("pins", "Pins", self.pins),
            PanelPlace("settings", "Run", self.run_settings),
            PanelPlace("candidates", "Candidates", self.candidates),
            PanelPlace("why", "Why", self.why),
            PanelPlace("inside", "Inside", self.inside),
            PanelPlace("runs", "Runs", self.runs),
            PanelPlace("log", "Log", self.log),
        )
