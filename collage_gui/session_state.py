"""What the window knows of one open document: fields, signals, and how the engine is asked."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtGui import QUndoStack

from collage_engine.drawing.groups import Group
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records.answers import (
    ExplainAnswer,
    InsideAnswer,
    PreflightAnswer,
)
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.comparison import Comparison
from collage_engine.records.cost import UNKNOWN, Cost
from collage_engine.records.event import Progress, Stage
from collage_engine.records.graph import GraphRecord, ModelRecord
from collage_engine.records.limit import LimitVerdict
from collage_engine.records.pin import Pin, PinVerdict
from collage_engine.records.placement import Partition, Placement, Run
from collage_engine.records.settings import RunSettings
from collage_gui.engine_client import EngineClient

_documents: weakref.WeakValueDictionary[str, DocumentState] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def registered(key: str) -> DocumentState | None:
    """The open document of that key; None when it has been closed."""
    return _documents.get(key)


@dataclass(frozen=True)
class Shown:
    """The placement in the picture, and where it comes from."""

    placement: Placement
    title: str
    run: str | None = None
    """Run id; None for a search on stored costs."""
    estimated: bool = True
    pins: tuple[Pin, ...] = ()
    """The pins it was made under: with others it is stale."""


@dataclass(frozen=True)
class Reference:
    """What numbers are compared with: a run, or a baseline of the run that is shown."""

    kind: str = "best"
    """``best`` baseline, ``baseline`` by name, or ``run`` by id."""
    name: str = ""


class DocumentState(QObject):
    """Fields, signals and requests of one model or session, opened in one engine."""

    opened = Signal()
    failed = Signal(str)
    """A request failed: one sentence for the banner."""
    graph_changed = Signal()
    placement_changed = Signal()
    pins_changed = Signal()
    candidates_changed = Signal()
    costs_changed = Signal()
    runs_changed = Signal()
    reference_changed = Signal()
    comparison_changed = Signal()
    selection_changed = Signal()
    candidate_changed = Signal()
    """The candidate picked in a table, or None."""
    explanation_changed = Signal()
    inside_changed = Signal()
    running_changed = Signal()
    progress_changed = Signal()
    preflight_changed = Signal()
    log_added = Signal(str, str)
    """Level and text."""
    settings_restored = Signal()
    """``settings`` are those of an opened session's newest run."""
    title_changed = Signal()
    run_finished = Signal(str, str)
    """State and reason."""

    def __init__(self, client: EngineClient, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.key = f"document-{next(_numbers)}"
        _documents[self.key] = self
        self.client = client
        self.undo = QUndoStack(self)
        self.path = ""
        self.session_path = ""
        self.handle = ""
        self.model: ModelRecord | None = None
        self.graph: GraphRecord | None = None
        self.operators: OperatorGraph | None = None
        self.scopes: dict[str, Group] = {}
        self.collapsed: frozenset[str] = frozenset()
        self.read_only = False
        self.note: str | None = None
        self.settings = RunSettings()
        self._restore_settings = False
        """The next list of runs brings the settings of an opened session."""
        self.pins: tuple[Pin, ...] = ()
        self.verdicts: tuple[PinVerdict, ...] = ()
        self.limits: tuple[LimitVerdict, ...] = ()
        """Of the last search; a run has its own."""
        self.infeasible: dict[str, Any] | None = None
        self.candidates: dict[str, CandidateRecord] = {}
        self.costs: dict[str, Cost] = {}
        self.regrets: dict[str, float | None] = {}
        self.runs: list[Run] = []
        self.hidden_runs: set[str] = set()
        self.shown: Shown | None = None
        self.runners_up: tuple[Placement, ...] = ()
        self.reference = Reference()
        self.comparison: Comparison | None = None
        self.own_placements: tuple[dict[str, str], ...] = ()
        self.selection: frozenset[int] = frozenset()
        self.primary: int | None = None
        self.candidate: str | None = None
        self.explanation: ExplainAnswer | None = None
        self.explained: tuple[CandidateRecord, ...] = ()
        self.inside: InsideAnswer | None = None
        self.preflight: PreflightAnswer | None = None
        self.running = False
        self.cancelling = False
        self.searching = False
        self.stages: dict[str, Stage] = {}
        self.progress: Progress | None = None
        self.unsaved = False
        self.log: list[tuple[str, str]] = []
        self._partitions_of: Shown | None = None
        self._partitions: dict[int, Partition] = {}
        self._tickets: dict[str, int] = {}
        self._candidates_asked = ""
        """The handle for which an answer is awaited."""
        self._candidates_dirty = False
        self._ask = QTimer(self, interval=90, singleShot=True)
        self._repaint = QTimer(self, interval=250, singleShot=True)

    # -- asking ------------------------------------------------------------------------

    def _request(
        self,
        method: str,
        params: Any,
        then: Callable[[Any], None] | None = None,
        failed: Callable[[str], None] | None = None,
        ticket: str = "",
    ) -> None:
        """Send; an answer whose ``ticket`` has been used again meanwhile is dropped."""
        number = self._tickets[ticket] = self._tickets.get(ticket, 0) + 1

        def current() -> bool:
            return not ticket or self._tickets[ticket] == number

        def on_result(result: Any) -> None:
            if current() and then is not None:
                then(result)

        def on_error(reason: str) -> None:
            if current():
                (failed or self.failed.emit)(reason)

        self.client.request(method, params, on_result, on_error)

    # -- what everybody asks -----------------------------------------------------------

    @property
    def visible_runs(self) -> list[Run]:
        return [run for run in self.runs if run.id not in self.hidden_runs]

    def run_of(self, id_: str | None) -> Run | None:
        return next((run for run in self.runs if run.id == id_), None)

    def run_title(self, run: Run) -> str:
        """A run's name, or its place among the runs."""
        return run.name or f"Run {self.runs.index(run) + 1}"

    def cost(self, candidate: str) -> Cost:
        found = self.costs.get(candidate)
        if found is None and candidate in self.candidates:
            found = self.candidates[candidate].cost
        return found or UNKNOWN

    @property
    def partitions(self) -> dict[int, Partition]:
        """Operator → its partition in the shown placement; empty without one."""
        if self._partitions_of is not self.shown:
            self._partitions_of = self.shown
            placed = self.shown.placement.partitions if self.shown else ()
            self._partitions = {n: p for p in placed for n in p.nodes}
        return self._partitions

    def add_log(self, level: str, text: str) -> None:
        self.log.append((level, text))
        del self.log[:-2000]
        self.log_added.emit(level, text)

    def mark_unsaved(self) -> None:
        if not self.unsaved:
            self.unsaved = True
            self.title_changed.emit()
