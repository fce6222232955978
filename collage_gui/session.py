"""What the window knows of one open document, and the requests that change it. No widgets.

Everything shown comes from here and everything done goes through here: panels listen to the
signals and call the methods. Answers that arrive after their question lost its meaning (another
selection, a newer search) are told apart by a ticket and dropped.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtGui import QUndoStack

from collage_engine.drawing.groups import Group, first_view, name_scopes, partition_groups, sections
from collage_engine.drawing.operators import OperatorGraph, operator_graph
from collage_engine.records.answers import (
    ExplainAnswer,
    InsideAnswer,
    PreflightAnswer,
    SearchAnswer,
)
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.comparison import Comparison
from collage_engine.records.cost import UNKNOWN, Cost
from collage_engine.records.event import Event, Log, Progress, Stage
from collage_engine.records.graph import GraphRecord, ModelRecord
from collage_engine.records.pin import Pin, PinVerdict
from collage_engine.records.placement import Baseline, Partition, Placement, Run
from collage_engine.records.settings import RunSettings
from collage_engine.service import protocol
from collage_gui.commands import EditRun, HideRun, SetPins
from collage_gui.engine_client import EngineClient, model_by_value

_documents: weakref.WeakValueDictionary[str, Document] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def find_document(key: str) -> Document | None:
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


class Document(QObject):
    """One model or session, opened in one engine."""

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
        self.pins: tuple[Pin, ...] = ()
        self.verdicts: tuple[PinVerdict, ...] = ()
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
        self._tickets: dict[str, int] = {}
        self._ask = QTimer(self, interval=90, singleShot=True)
        self._ask.timeout.connect(self._explain)
        self._repaint = QTimer(self, interval=250, singleShot=True)
        self._repaint.timeout.connect(self._costs_arrived)
        client.notified.connect(self._notified)

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

    # -- opening -----------------------------------------------------------------------

    def open_model(self, path: str, shapes: dict[str, tuple[int, ...]] | None = None) -> None:
        self.path = path
        sizes = shapes if shapes is not None else dict(self.settings.shapes)
        if self.client.connection.is_remote:
            try:
                params = model_by_value(path)
            except OSError as error:
                reason = f"{path}: {error.strerror}"
                QTimer.singleShot(0, self, lambda: self.failed.emit(reason))
                return
            params = msgspec.structs.replace(params, shapes=sizes)
        else:
            params = protocol.ModelOpen(path=path, shapes=sizes)
        self.settings = msgspec.structs.replace(self.settings, shapes=sizes)
        self._request("model.open", params, self._admitted, ticket="open")

    def open_session(self, path: str, recovered: bool = False) -> None:
        self.path = self.path or path
        if not recovered:
            self.session_path = path
        self._request(
            "session.open", protocol.SessionOpen(path=path), self._admitted, ticket="open"
        )

    def _admitted(self, answer: protocol.ModelAnswer) -> None:
        self.handle = answer.document
        self.model = answer.model
        self.read_only = answer.read_only
        self.note = answer.note
        self.title_changed.emit()
        self._request("graph.get", protocol.Document(document=self.handle), self._graph_arrived)

    def _graph_arrived(self, answer: protocol.GraphAnswer) -> None:
        self.graph = answer.graph
        self.operators = operator_graph(answer.graph)
        self.scopes = {g.id: g for g in sections(self.operators, name_scopes(self.operators))}
        self.collapsed = first_view(self.operators, self.scopes.values())
        self.selection, self.primary, self.candidate = frozenset(), None, None
        if self.pins and not answer.pins and not self.read_only:
            self._send_pins()
        else:
            self.pins = answer.pins
        self.opened.emit()
        self.graph_changed.emit()
        self.pins_changed.emit()
        self._refresh_candidates()
        self._refresh_runs(show_last=True)

    @property
    def title(self) -> str:
        path = self.session_path or self.path or (self.model.path if self.model else "")
        name = path.replace("\\", "/").rsplit("/", 1)[-1] or "untitled"
        return name + (" •" if self.unsaved else "")

    # -- candidates and costs ----------------------------------------------------------

    def _refresh_candidates(self) -> None:
        self._request(
            "candidates.query",
            protocol.CandidatesQuery(document=self.handle, limit=500_000),
            self._candidates_arrived,
            ticket="candidates",
        )

    def _candidates_arrived(self, answer: protocol.CandidatesAnswer) -> None:
        self.candidates = {c.id: c for c in answer.candidates}
        for candidate in answer.candidates:
            if candidate.cost.state != "unknown":
                self.costs[candidate.id] = candidate.cost
        self.regrets.update(answer.regrets)
        self.candidates_changed.emit()
        if self.selection:
            self._ask.start()

    def _costs_arrived(self) -> None:
        """Tell the panels, and give them at least six times as long as they took to rest."""
        begin = time.perf_counter()
        self.costs_changed.emit()
        spent = time.perf_counter() - begin
        self._repaint.setInterval(max(250, min(4000, round(spent * 6000))))

    def cost(self, candidate: str) -> Cost:
        found = self.costs.get(candidate)
        if found is None and candidate in self.candidates:
            found = self.candidates[candidate].cost
        return found or UNKNOWN

    @property
    def measured(self) -> bool:
        """Whether there is any cost to search with."""
        return any(cost.usable for cost in self.costs.values())

    # -- runs --------------------------------------------------------------------------

    def _refresh_runs(self, show_last: bool = False) -> None:
        def arrived(answer: protocol.RunsAnswer) -> None:
            self.runs = list(answer.runs)
            self.runs_changed.emit()
            if show_last and self.visible_runs:
                self.show_run(self.visible_runs[-1].id)

        self._request("runs.list", protocol.Document(document=self.handle), arrived, ticket="runs")

    @property
    def visible_runs(self) -> list[Run]:
        return [run for run in self.runs if run.id not in self.hidden_runs]

    def run_of(self, id_: str | None) -> Run | None:
        return next((run for run in self.runs if run.id == id_), None)

    def run_title(self, run: Run) -> str:
        """A run's name, or its place among the runs."""
        return run.name or f"Run {self.runs.index(run) + 1}"

    def show_run(self, id_: str) -> None:
        """Show a run's placement in the graph and in every table."""
        run = self.run_of(id_)
        if run is None or run.placement is None:
            return
        self.costs.update(run.costs)
        confirmed = run.placement.measured_us is not None
        self.runners_up = tuple(run.rivals)
        pins = self._pins_of(run)
        self._show(Shown(run.placement, self.run_title(run), run.id, not confirmed, pins))
        if run.pins:
            self.verdicts = tuple(run.pins)
            self.pins_changed.emit()

    def _pins_of(self, run: Run) -> tuple[Pin, ...]:
        """The pins a run was made under: known exactly for runs of this sitting."""
        return self._run_pins.get(run.id, self.pins if len(run.pins) == len(self.pins) else ())

    @property
    def _run_pins(self) -> dict[str, tuple[Pin, ...]]:
        if not hasattr(self, "_pins_by_run"):
            self._pins_by_run: dict[str, tuple[Pin, ...]] = {}
        return self._pins_by_run

    def show_placement(self, placement: Placement, title: str) -> None:
        """Show another cover, e.g. the runner-up, as an estimate."""
        self._show(Shown(placement, title, None, True, self.pins))

    def _show(self, shown: Shown) -> None:
        self.shown = shown
        self.placement_changed.emit()
        self._compare_with_reference()
        if self.selection:
            self._ask.start()

    @property
    def stale(self) -> bool:
        """The picture is older than the pins."""
        return self.shown is not None and _essence(self.shown.pins) != _essence(self.pins)

    @property
    def partitions(self) -> dict[int, Partition]:
        if self.shown is None:
            return {}
        return {n: p for p in self.shown.placement.partitions for n in p.nodes}

    def start_run(self, settings: RunSettings | None = None) -> None:
        """Search on what is known, colour the graph at once, then run the whole pipeline."""
        if self.running or not self.handle:
            return
        if settings is not None:
            self.settings = settings
        self.settings = msgspec.structs.replace(self.settings, placements=self.own_placements)
        self.running, self.cancelling = True, False
        self.stages, self.progress = {}, None
        self._starting_pins = self.pins
        self.running_changed.emit()
        if self.measured:
            self.search(quiet=True)
        self._request(
            "run.start",
            protocol.RunStart(document=self.handle, settings=self.settings),
            failed=self._run_failed,
        )

    def _run_failed(self, reason: str) -> None:
        self.running = self.cancelling = False
        self.progress = None
        self.running_changed.emit()
        self.failed.emit(reason)
        self.run_finished.emit("failed", reason)

    def cancel_run(self) -> None:
        if self.running and not self.cancelling:
            self.cancelling = True
            self.running_changed.emit()
            self._request("run.cancel", protocol.RunCancel(document=self.handle))

    def search(self, quiet: bool = False) -> None:
        """Search again on stored costs; the answer is an estimate until a run confirms it."""
        pins = self.pins

        def arrived(answer: SearchAnswer) -> None:
            self.searching = False
            self.infeasible = answer.infeasible
            if answer.verdicts:
                self.verdicts = answer.verdicts
            self.regrets.update(answer.regrets)
            if answer.placement is not None:
                self.runners_up = answer.runners_up
                self._show(Shown(answer.placement, "Search on stored costs", None, True, pins))
            elif answer.infeasible is not None:
                self.failed.emit(self.infeasible_text)
            self.pins_changed.emit()

        def failed(reason: str) -> None:
            self.searching = False
            if not quiet:
                self.failed.emit(reason)

        self.searching = True
        params = protocol.RunSearch(document=self.handle, settings=self.settings)
        self._request("run.search", params, arrived, failed, ticket="search")

    def _learn_regrets(self) -> None:
        """Regrets and runners-up of what a run has just measured; the picture stays."""

        def arrived(answer: SearchAnswer) -> None:
            self.regrets = dict(answer.regrets)
            self.runners_up = answer.runners_up or self.runners_up
            self.costs_changed.emit()

        params = protocol.RunSearch(document=self.handle, settings=self.settings)
        self._request(
            "run.search", params, arrived, lambda reason: self.add_log("warning", reason), "regrets"
        )

    @property
    def infeasible_text(self) -> str:
        """One sentence: why no placement satisfies the pins."""
        found = self.infeasible or {}
        reason = found.get("reason") or found.get("message")
        if not reason:
            reason = ", ".join(f"{key}: {value}" for key, value in found.items() if value)
        return f"No placement satisfies the pins: {reason}"

    def ask_preflight(self, settings: RunSettings) -> None:
        def arrived(answer: PreflightAnswer) -> None:
            self.preflight = answer
            self.preflight_changed.emit()
            self._refresh_candidates()

        params = protocol.RunStart(document=self.handle, settings=settings)
        self._request("run.preflight", params, arrived, ticket="preflight")

    def edit_run(self, id_: str, **fields: str) -> None:
        def arrived(answer: protocol.RunsAnswer) -> None:
            self.runs = list(answer.runs)
            self.mark_unsaved()
            self.runs_changed.emit()

        self._request(
            "runs.edit", protocol.RunEdit(document=self.handle, run=id_, **fields), arrived
        )

    def hide_run(self, id_: str, hidden: bool) -> None:
        (self.hidden_runs.add if hidden else self.hidden_runs.discard)(id_)
        self.mark_unsaved()
        self.runs_changed.emit()

    def rename_run(self, id_: str, name: str) -> None:
        run = self.run_of(id_)
        if run is not None and run.name != name:
            self.undo.push(EditRun(self.key, id_, "name", run.name, name))

    def note_run(self, id_: str, note: str) -> None:
        run = self.run_of(id_)
        if run is not None and run.note != note:
            self.undo.push(EditRun(self.key, id_, "note", run.note, note))

    def delete_run(self, id_: str) -> None:
        self.undo.push(HideRun(self.key, id_))

    # -- comparison --------------------------------------------------------------------

    def set_reference(self, reference: Reference) -> None:
        self.reference = reference
        self.comparison = None
        self.reference_changed.emit()
        self._compare_with_reference()

    def _compare_with_reference(self) -> None:
        self.comparison = None
        run = self.shown.run if self.shown else None
        if self.reference.kind != "run" or run is None or run == self.reference.name:
            self.comparison_changed.emit()
            return

        def arrived(answer: Comparison) -> None:
            self.comparison = answer
            self.comparison_changed.emit()

        params = protocol.RunsCompare(document=self.handle, a=self.reference.name, b=run)
        self._request("runs.compare", params, arrived, ticket="compare")

    def reference_time(self) -> tuple[str, float | None]:
        """Name and µs of what is compared with; None when it is not known."""
        if self.reference.kind == "run":
            run = self.run_of(self.reference.name)
            placement = run.placement if run else None
            time = (placement.measured_us or placement.estimated_us) if placement else None
            return (self.run_title(run) if run else self.reference.name), time
        run = self.run_of(self.shown.run) if self.shown else None
        run = run or (self.visible_runs[-1] if self.visible_runs else None)
        if run is None:
            return "best baseline", None
        timed = [b for b in run.baselines if b.measured_us is not None]
        if self.reference.kind == "baseline":
            timed = [b for b in timed if b.name == self.reference.name]
        if not timed:
            return self.reference.name or "best baseline", None
        best = min(timed, key=lambda b: b.measured_us or 0.0)
        return best.name, best.measured_us

    def reference_baseline(self) -> Baseline | None:
        """The baseline that numbers are compared with, if it is one."""
        name, _ = self.reference_time()
        run = self.run_of(self.shown.run) if self.shown else None
        run = run or (self.visible_runs[-1] if self.visible_runs else None)
        if run is None or self.reference.kind == "run":
            return None
        return next((b for b in run.baselines if b.name == name), None)

    def reference_partitions(self) -> dict[str, float]:
        """Partition id → time of exactly these operators in the reference, where comparable.

        For a run: sums over the smallest sets of operators whose border is a border in both
        placements. For a toolchain alone: its candidate on the same operators, if measured.
        """
        if self.shown is None:
            return {}
        if self.reference.kind == "run":
            run = self.run_of(self.reference.name)
            if run is None or run.placement is None:
                return {}
            return _comparable(self.shown.placement, run.placement)
        name, _ = self.reference_time()
        by_work = {(c.instance.toolchain, c.nodes): c.id for c in self.candidates.values()}
        found: dict[str, float] = {}
        for partition in self.shown.placement.partitions:
            candidate = by_work.get((name, partition.nodes))
            cost = self.cost(candidate) if candidate else UNKNOWN
            if cost.usable and cost.median_us is not None:
                found[partition.id] = cost.median_us
        return found

    # -- selection and questions -------------------------------------------------------

    def select(self, operators: Iterable[int], primary: int | None = None) -> None:
        chosen = frozenset(operators)
        if primary is None or primary not in chosen:
            primary = min(chosen) if chosen else None
        if chosen == self.selection and primary == self.primary:
            return
        self.selection, self.primary = chosen, primary
        self.candidate = None
        self.selection_changed.emit()
        self.candidate_changed.emit()
        self._ask.start()

    def select_candidate(self, id_: str | None) -> None:
        """Pick a candidate: the graph shows its nodes, *Inside* its code."""
        if id_ != self.candidate:
            self.candidate = id_
            self.candidate_changed.emit()

    def partition_of(self, operator: int | None) -> Partition | None:
        return self.partitions.get(operator) if operator is not None else None

    def _explain(self) -> None:
        if not self.handle:
            return
        self.explanation, self.explained = None, ()
        if self.primary is None:
            self._tickets["explain"] = self._tickets.get("explain", 0) + 1
            self.explanation_changed.emit()
            return
        if not self.candidates:
            self.explanation_changed.emit()
            return
        nodes = tuple(sorted(self.selection))

        def explained(answer: ExplainAnswer) -> None:
            self.explanation = answer
            self.regrets.update(answer.regrets)
            self.explanation_changed.emit()

        def queried(answer: protocol.CandidatesAnswer) -> None:
            self.explained = answer.candidates
            self.regrets.update(answer.regrets)
            for candidate in answer.candidates:
                self.candidates.setdefault(candidate.id, candidate)
                if candidate.cost.state != "unknown":
                    self.costs[candidate.id] = candidate.cost
            self.explanation_changed.emit()

        query = protocol.CandidatesQuery(document=self.handle, nodes=nodes[:4000], limit=20_000)
        self._request("candidates.query", query, queried, ticket="query")
        ask = protocol.Explain(document=self.handle, node=self.primary)
        self._request("explain", ask, explained, ticket="explain")

    def ask_inside(self, candidate: str | None, node: int | None) -> None:
        """What is in a candidate, and the weights of a node."""
        self.inside = None

        def arrived(answer: InsideAnswer) -> None:
            self.inside = answer
            self.inside_changed.emit()

        def failed(reason: str) -> None:
            self.inside = InsideAnswer(reason=reason)
            self.inside_changed.emit()

        params = protocol.InsideQuery(document=self.handle, candidate=candidate, node=node)
        self._request("inside.get", params, arrived, failed, ticket="inside")

    def measure_now(
        self, nodes: Iterable[int], longer: bool = False, toolchains: tuple[str, ...] = ()
    ) -> None:
        """Measure these operators as one partition on every toolchain; they join the search."""

        def arrived(answer: protocol.CandidatesAnswer) -> None:
            self.progress = None
            for candidate in answer.candidates:
                self.candidates[candidate.id] = candidate
                self.costs[candidate.id] = candidate.cost
            self.mark_unsaved()
            self.candidates_changed.emit()
            good = [c for c in answer.candidates if c.cost.usable]
            text = f"measured {len(answer.candidates)} candidates, {len(good)} of them valid"
            self.add_log("info", text)
            self.progress_changed.emit()
            self._ask.start()

        params = protocol.MeasureNow(
            document=self.handle, nodes=tuple(sorted(nodes)), toolchains=toolchains, longer=longer
        )
        self.add_log("info", f"measuring {len(params.nodes)} operators now")
        self._request("measure.now", params, arrived)

    # -- pins --------------------------------------------------------------------------

    def edit_pins(self, pins: Iterable[Pin], text: str) -> None:
        """Replace the pins, undoably."""
        after = tuple(pins)
        if _essence(after) != _essence(self.pins):
            self.undo.push(SetPins(self.key, self.pins, after, text))

    def put_pins(self, pins: tuple[Pin, ...]) -> None:
        """What undo and redo call."""
        self.pins = pins
        self.verdicts = ()
        self.infeasible = None
        self.mark_unsaved()
        self.pins_changed.emit()
        self._send_pins()

    def _send_pins(self) -> None:
        if not self.handle:
            return

        def arrived(answer: protocol.PinsAnswer) -> None:
            if not self.verdicts:
                self.verdicts = answer.verdicts
                self.pins_changed.emit()
            self.pins_taken.emit()

        params = protocol.PinsSet(document=self.handle, pins=self.pins)
        self._request("pins.set", params, arrived, ticket="pins")

    pins_taken = Signal()
    """The engine has the pins: a search may follow."""

    def pinned(self) -> dict[int, list[int]]:
        """Operator → numbers of its pins."""
        found: dict[int, list[int]] = {}
        for at, pin in enumerate(self.pins):
            for node in pin.nodes:
                found.setdefault(node, []).append(at)
        return found

    # -- saving ------------------------------------------------------------------------

    def save(self, path: str, then: Callable[[], None] | None = None) -> None:
        def saved(_: protocol.Exported) -> None:
            self.session_path = path
            self.unsaved = False
            self.undo.setClean()
            self.title_changed.emit()
            if then is not None:
                then()

        for run in sorted(self.hidden_runs):
            self._request("runs.edit", protocol.RunEdit(document=self.handle, run=run, delete=True))
        self._request("session.save", protocol.SessionSave(document=self.handle, path=path), saved)

    def autosave(self, path: str, then: Callable[[], None]) -> None:
        """A recovery copy; a failure is a line in the log, not a banner."""
        self._request(
            "session.save",
            protocol.SessionSave(document=self.handle, path=path),
            lambda _: then(),
            lambda reason: self.add_log("warning", f"no recovery copy: {reason}"),
        )

    def mark_unsaved(self) -> None:
        if not self.unsaved:
            self.unsaved = True
            self.title_changed.emit()

    def close(self) -> None:
        self.client.notified.disconnect(self._notified)
        self._ask.stop()
        self._repaint.stop()
        for ticket in self._tickets:
            self._tickets[ticket] += 1

    # -- the engine's news -------------------------------------------------------------

    def add_log(self, level: str, text: str) -> None:
        self.log.append((level, text))
        del self.log[:-2000]
        self.log_added.emit(level, text)

    def _notified(self, method: str, params: Any) -> None:
        if params.document != self.handle or not self.handle:
            return
        if method == "measured":
            self.costs.update(params.costs)
            if not self._repaint.isActive():
                self._repaint.start()
            if any(id_ not in self.candidates for id_ in params.costs):
                self._refresh_candidates()
            return
        event = msgspec.convert(params.event, Event)
        if isinstance(event, Stage):
            self.stages[event.stage] = event
            if event.stage == "enumerate" and event.done:
                self._refresh_candidates()
            self.progress_changed.emit()
        elif isinstance(event, Progress):
            self.progress = event
            self.progress_changed.emit()
        elif isinstance(event, Log):
            self.add_log(event.level, event.text)
        else:
            self._done(event)

    def _done(self, event: Any) -> None:
        self.running = self.cancelling = False
        self.progress = None
        self.mark_unsaved()
        self.costs_changed.emit()
        self._refresh_candidates()
        if event.state == "finished" and event.run is not None:
            self._run_pins[event.run] = getattr(self, "_starting_pins", self.pins)
            wanted = event.run

            def arrived(answer: protocol.RunsAnswer) -> None:
                self.runs = list(answer.runs)
                self.runs_changed.emit()
                self.show_run(wanted)
                self.running_changed.emit()
                self.run_finished.emit("finished", "")
                self._learn_regrets()

            self._request("runs.list", protocol.Document(document=self.handle), arrived)
            return
        self.running_changed.emit()
        reason = event.reason or ("cancelled" if event.state == "cancelled" else "the run failed")
        if event.state == "failed":
            self.failed.emit(reason)
        self.run_finished.emit(event.state, reason)

    def engine_lost(self) -> None:
        """The engine is gone: nothing runs, what is known stays on the screen."""
        self.handle = ""
        if self.running or self.progress is not None:
            self.running = self.cancelling = False
            self.progress = None
            self.running_changed.emit()
            self.progress_changed.emit()

    def groups(self, partitions: bool) -> dict[str, Group]:
        """Groups that may be collapsed: the scopes, or the shown placement's partitions."""
        if partitions and self.shown is not None:
            return {g.id: g for g in partition_groups(self.shown.placement)}
        return self.scopes


def _essence(pins: tuple[Pin, ...]) -> tuple[Any, ...]:
    return tuple((p.kind, p.nodes, p.toolchain, p.device) for p in pins)


def _comparable(now: Placement, before: Placement) -> dict[str, float]:
    """Partition id of ``now`` → its share of the time of the smallest common sets in ``before``."""
    parent: dict[tuple[str, str], tuple[str, str]] = {}

    def root(item: tuple[str, str]) -> tuple[str, str]:
        while parent.setdefault(item, item) != item:
            item = parent[item]
        return item

    owner = {n: p for p in before.partitions for n in p.nodes}
    for partition in now.partitions:
        for node in partition.nodes:
            other = owner.get(node)
            if other is not None:
                parent[root(("b", other.id))] = root(("a", partition.id))
    sums: dict[tuple[str, str], list[float | None]] = {}
    for side, placement in (("a", now), ("b", before)):
        for partition in placement.partitions:
            total = sums.setdefault(root((side, partition.id)), [0.0, 0.0])
            at = 0 if side == "a" else 1
            if total[at] is not None:
                us = partition.estimated_us
                total[at] = None if us is None else total[at] + us  # type: ignore[operator]
    found: dict[str, float] = {}
    for partition in now.partitions:
        mine, theirs = sums[root(("a", partition.id))]
        if mine and theirs is not None and partition.estimated_us is not None:
            found[partition.id] = theirs * partition.estimated_us / mine
    return found


def with_settings(settings: RunSettings, **changes: Any) -> RunSettings:
    return msgspec.structs.replace(settings, **changes)


__all__ = ["Document", "Reference", "Shown", "find_document", "replace", "with_settings"]
