"""Holds one model or session that is opened in an engine, and does runs and searches with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtGui import QUndoStack

from collage_engine.drawing.groups import (
    Group,
    first_view,
    name_scopes,
    sections,
)
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records import protocol
from collage_engine.records.answers import SearchAnswer
from collage_engine.records.event import (
    Done,
    Event,
    Log,
    Measured,
    Progress,
    Provisional,
    Stage,
)
from collage_engine.records.graph import GraphRecord, ModelRecord
from collage_engine.records.pin import LimitVerdict
from collage_engine.records.placement import Placement, Run, baseline_placement
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import OpenSizes, ShapeChoice, ShapeRow
from collage_engine.support.text import counted
from collage_engine.support.typed import convert
from collage_engine.wording import layers
from collage_engine.wording.amounts import duration_text
from collage_engine.wording.figures import latency_us, was_wanted_quickly
from collage_engine.wording.sentences import STAGE_TITLES
from collage_engine.wording.titles import baseline_title
from collage_gui.document.pin_set import PinSet
from collage_gui.document.questions import CostTable, Questions
from collage_gui.document.runs import ReferenceComparison, Runs
from collage_gui.document.shown import Selection, Shown, ShownPlacement
from collage_gui.engine_client import EngineClient, EngineRequests, model_by_value


class Execution(QObject):
    """Starts and cancels runs, searches on stored costs, measures single candidates."""

    running_changed = Signal()
    progress_changed = Signal()
    settings_restored = Signal()
    """``settings`` are those of an opened session's newest run."""
    finished = Signal(str, str)
    """A run ended: its state (finished, failed, cancelled or lost) and the reason."""
    searched = Signal(str)
    """A search ended; the sentence says why no placement satisfies the demands, if none does."""
    measured = Signal()
    """There are new measurements: the document has something to save."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self._requests, self._costs, self._pins = document.requests, document.costs, document.pins
        self._placement, self._runs = document.placement, document.runs
        self.settings = RunSettings()
        self.running = False
        self.cancelling = False
        self.stopping = False
        """Whether the run under way was told to end with its best placement so far."""
        self.is_quick = False
        """Whether the run under way is a quick confirmation."""
        self.stages: dict[str, Stage] = {}
        self.progress: Progress | None = None
        self.limits: tuple[LimitVerdict, ...] = ()
        """What became of the limits in the last search; a run has its own."""
        self._pins_at_start: tuple[str, ...] = ()

    # -- runs --------------------------------------------------------------------------

    def start(self, settings: RunSettings, **changes: Any) -> None:
        """Run: first a search on what is known colours the graph, then the run confirms.

        Args:
            settings: Settings of this run and of later searches.
            changes: Settings that only this run has.
        """
        if self.running or not self._requests.handle:
            return
        self.settings = settings
        mine = msgspec.structs.replace(settings, **changes)
        self.running, self.cancelling, self.stopping = True, False, False
        self.stages, self.progress = {}, None
        self._runs.provisional = None
        self._pins_at_start = self._pins.written
        self.running_changed.emit()
        self.is_quick = mine.confirmation == "quick"
        if self._costs.any_usable and not self.is_quick:
            self.search(quiet=True)
        params = protocol.RunStart(document=self._requests.handle, settings=mine)
        self._requests.send(params, failed=self._start_failed)

    def cancel(self, keep: bool = False) -> None:
        """Cancel the run; what was measured is kept.

        Args:
            keep: Whether it ends with its best placement so far, which is confirmed quickly.
        """
        if self.running and not self.cancelling and not (keep and self.stopping):
            self.cancelling, self.stopping = not keep, keep or self.stopping
            self.running_changed.emit()
            self._requests.send(protocol.RunCancel(document=self._requests.handle, keep=keep))

    def show_provisional(self, run: Run) -> None:
        """Take what the run under way has found so far; later stages may improve it.

        It is shown unless a placement stays on the screen that was measured to be faster under the
        same pins, such as that of the run before.
        """
        if not self.running or (self.is_quick and self._placement.shown is not None):
            return  # what is shown while it is confirmed stays until there is an answer
        self._runs.provisional = run
        self.progress_changed.emit()
        self._runs.changed.emit()
        shown = self._placement.shown
        ours, theirs = latency_us(run.placement), self._measured_us(self._pins_at_start)
        of_this_run = shown is not None and shown.run == run.id
        if of_this_run or theirs is None or (ours is not None and ours < theirs):
            self._runs.show(run.id, self._pins_at_start)

    def show_stage(self, event: Stage) -> None:
        """Take the engine's news that a stage began or ended."""
        title = STAGE_TITLES.get(event.stage, event.stage)
        took = f" took {duration_text(event.seconds)}" if event.done else " began"
        self._requests.logged.emit(
            "info", f"{title}{took}{f': {event.detail}' if event.detail else ''}"
        )
        self.stages[event.stage] = event
        if event.stage == "enumerate" and event.done:
            self._costs.refresh()
        self.progress_changed.emit()

    def show_progress(self, event: Progress) -> None:
        """Take the engine's news of how far a stage is."""
        self.progress = event
        self.progress_changed.emit()

    def end_run(self, state: str, run: str | None, reason: str | None) -> None:
        """Take the engine's news that the run ended, and show what it found.

        Args:
            state: finished, failed or cancelled.
            run: Id of the finished run.
            reason: Why it did not finish.
        """
        self._stop()
        ended = {"finished": "The run ended", "cancelled": "The run was cancelled"}
        text = ended.get(state, "The run failed")
        self._requests.logged.emit("info", f"{text}: {reason}" if reason else text)
        self.measured.emit()
        self._costs.changed.emit()
        self._costs.refresh()
        if state == "finished" and run is not None:

            def arrived() -> None:
                self._runs.provisional = None
                self._runs.show(run)
                self.running_changed.emit()
                self.finished.emit("finished", "")

            self._runs.refresh(arrived)
            return
        self._runs.end_provisional()
        self.running_changed.emit()
        reason = reason or ("cancelled" if state == "cancelled" else "the run failed")
        if state == "failed":
            self._requests.failed.emit(reason)
        self.finished.emit(state, reason)

    def engine_lost(self) -> None:
        """Note that the engine is gone, so that nothing runs any more."""
        if self.running or self.progress is not None:
            self._stop()
            self._runs.end_provisional()
            self.running_changed.emit()
            self.progress_changed.emit()
        self.finished.emit("lost", "")

    def restore_settings(self, run: Run) -> None:
        """Take the settings of a run for the next one.

        Its name was its own, its inputs are not kept, and only a key or a menu entry asks for a
        quick confirmation.
        """
        try:
            settings = convert(run.settings, RunSettings)
        except msgspec.ValidationError as error:
            title = self._runs.title_of(run)
            self._requests.logged.emit(
                "warning", f"The settings of {title} cannot be read: {error}"
            )
            return
        self.settings = msgspec.structs.replace(
            settings, name="", inputs_npz=None, confirmation="full"
        )
        self.settings_restored.emit()

    def _measured_us(self, pins: tuple[str, ...]) -> float | None:
        """Return the measured latency of the shown placement in µs.

        It is None for an estimate, or under other pins.
        """
        shown = self._placement.shown
        if shown is None or shown.pins != pins:
            return None
        return shown.placement.measured_us

    def _stop(self) -> None:
        self.running = self.cancelling = self.stopping = False
        self.progress = None

    def _start_failed(self, reason: str) -> None:
        self._stop()
        self.running_changed.emit()
        self._requests.failed.emit(reason)
        self.finished.emit("failed", reason)

    # -- searches ----------------------------------------------------------------------

    def search(self, quiet: bool = False) -> None:
        """Search again on stored costs; the answer is an estimate until a run confirms it.

        Args:
            quiet: Whether it only prepares a run: its failure is not worth a message, and a
                measured placement stays on the screen.
        """
        pins = self._pins.written

        def arrived(answer: SearchAnswer) -> None:
            self._pins.infeasible = answer.infeasible
            if answer.verdicts:
                self._pins.verdicts, self._pins.together_us = answer.verdicts, answer.pins_us
            self.limits = answer.limits
            self._costs.take_prices(answer)
            sentence = ""
            if answer.placement is not None:
                # What a run has measured already is not shown as an estimate once more; neither the
                # search at the start of a run nor undoing a pin takes away what was measured.
                kept = (quiet or self._pins.restored) and self._measured_us(pins) is not None
                if not kept and not self._runs.show_known(answer.placement, pins):
                    title = "Search on stored costs"
                    self._placement.show(Shown(answer.placement, title, None, pins))
            elif answer.infeasible is not None:
                sentence = infeasible_sentence(answer.infeasible, self.settings, bool(pins))
            self._pins.changed.emit()
            self.searched.emit(sentence)

        params = protocol.RunSearch(document=self._requests.handle, settings=self.settings)
        failed = (lambda reason: None) if quiet else None
        self._requests.send(params, arrived, failed, topic="search")

    def ask_prices(self) -> None:
        """Ask what candidates and pins cost against the placement that is shown from now on.

        The engine keeps what it searches for this, so that the first click on a node after a run,
        or after a session was opened, is answered as quickly as later ones.
        """
        shown, pins = self._placement.shown, self._pins.written
        if shown is None or self.running or not self._requests.handle:
            return

        def arrived(answer: SearchAnswer) -> None:
            self._costs.take_prices(answer)
            if answer.verdicts and shown.pins == pins == self._pins.written:
                self._pins.set_verdicts(answer.verdicts, answer.pins_us)
            self._costs.changed.emit()

        def failed(reason: str) -> None:
            self._requests.logged.emit("warning", reason)

        params = protocol.RunSearch(
            document=self._requests.handle, settings=self.settings, shown=self._placement.named
        )
        self._requests.send(params, arrived, failed, topic="prices")

    # -- measuring ---------------------------------------------------------------------

    def measure_now(
        self, nodes: Iterable[int], longer: bool = False, toolchains: tuple[str, ...] = ()
    ) -> None:
        """Measure operators as one partition; the candidates take part in later searches.

        Args:
            nodes: Operator numbers.
            longer: Whether to measure again with more repeats what is measured already.
            toolchains: The toolchains to measure on; all of the run's by default.
        """

        def arrived(answer: protocol.CandidatesAnswer) -> None:
            self.progress = None
            self._costs.add(answer.candidates)
            self.measured.emit()
            self._costs.candidates_changed.emit()
            valid = sum(c.cost.usable for c in answer.candidates)
            count = counted(len(answer.candidates), "candidate")
            self._requests.logged.emit("info", f"Measured {count}; {valid} of them valid.")
            self.progress_changed.emit()

        params = protocol.MeasureNow(
            document=self._requests.handle,
            nodes=tuple(sorted(nodes)),
            toolchains=toolchains,
            longer=longer,
        )
        self._requests.logged.emit("info", "Measuring the selected nodes as one partition.")
        self._requests.send(params, arrived)


def infeasible_sentence(infeasible: Mapping[str, Any], settings: RunSettings, pinned: bool) -> str:
    """Return one sentence on why no placement satisfies what is demanded.

    Args:
        infeasible: What the search says of it.
        settings: Settings of the search, with its limits.
        pinned: Whether there are pins.
    """
    limited = (
        settings.allow_runtimes
        or settings.max_runtimes
        or settings.max_artifact_bytes
        or settings.licences
    )
    demands = ["the pins"] * pinned + ["the limits"] * bool(limited)
    what = " and ".join(demands) or "the model on these toolchains"
    return f"No placement satisfies {what}: {infeasible['reason']}"


class Shapes(QObject):
    """The shapes that a model is open for: each is a document of the engine, one is shown."""

    changed = Signal()
    """The shapes, their table, or the one that is shown changed."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self._document = document
        self.entries: tuple[protocol.ShapeEntry, ...] = ()
        """In the user's order; empty where the document was opened for one shape."""
        self.others = False
        """Whether an artifact of all shapes takes any other one, too."""
        document.execution.finished.connect(self._refresh)
        document.execution.running_changed.connect(self.changed)

    @property
    def several(self) -> bool:
        """Tells whether the model is open for more than one shape."""
        return len(self.entries) > 1

    @property
    def shown(self) -> protocol.ShapeEntry | None:
        """Returns the shape that the window shows; None where the document is for one shape."""
        handle = self._document.handle
        return next((entry for entry in self.entries if entry.document == handle), None)

    def rows(self, run: Run | None) -> list[ShapeRow]:
        """Return the rows of the table of shapes; those without a run have a choice only.

        Args:
            run: Stands in where the shapes are not open: a run knows those placed with it.
        """
        if self.several:
            return [
                entry.row or ShapeRow(choice=entry.choice, inputs={}, run="", latency_us=None)
                for entry in self.entries
            ]
        return list(run.shapes) if run is not None else []

    def take(self, entries: Sequence[protocol.ShapeEntry]) -> None:
        """Take what the engine says of the shapes that are open."""
        self.entries = tuple(entries)
        self.changed.emit()

    def show(self, entry: protocol.ShapeEntry) -> None:
        """Show another shape, unless something runs."""
        if entry != self.shown and not self._document.running:
            self._document.switch(entry, lambda: None)

    def _refresh(self) -> None:
        """Ask for the table of shapes, where there is one: a run has ended."""
        if self.entries and self._document.handle:
            params = protocol.ShapesList(document=self._document.handle)
            requests = self._document.requests
            requests.send(params, self.take, topic="shapes")


class Document(QObject):
    """Opens and saves a document, owns its parts, and hands them the engine's news.

    Everything that the window shows comes from the parts, and everything that it does goes
    through their methods: panels listen to their signals.
    """

    opened = Signal()
    failed = Signal(str)
    """A request failed: one sentence for the banner."""
    sizes_wanted = Signal(object, str)
    """The model leaves sizes open: the dimensions that it names with their inputs, and the sentence
    for a user who gives none."""
    graph_changed = Signal()
    title_changed = Signal()
    edited = Signal()
    """There is something more to save."""

    def __init__(self, client: EngineClient, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.client = client
        self.path = ""
        """The file that was opened."""
        self.session_path = ""
        """The session file that saving writes; empty before the first time."""
        self.model: ModelRecord | None = None
        self.graph: GraphRecord | None = None
        self.operators = OperatorGraph(GraphRecord(nodes=(), parameters=(), outputs=()))
        """The operators of ``graph``; none before it has arrived."""
        self.scopes: dict[str, Group] = {}
        self.first_collapsed: frozenset[str] = frozenset()
        """Ids of the scopes that the first view draws as one box each."""
        self.unsaved = False
        self._restore_settings = False
        """Whether the next list of runs brings the settings of an opened session."""
        self.undo = QUndoStack(self)
        self.requests = EngineRequests(client, self)
        self.selection = Selection(self.operators, self)
        self.costs = CostTable(self.requests, self)
        self.placement = ShownPlacement(self)
        self.pins = PinSet(self.requests, self.undo, self.placement, self)
        self.runs = Runs(
            self.requests, self.undo, self.costs, self.pins, self.placement, parent=self
        )
        self.execution = Execution(self)
        self.shapes = Shapes(self)
        self.comparison = ReferenceComparison(lambda: self.graph, self.runs, self.placement, self)
        self.questions = Questions(self.requests, self.selection, self.costs, self.placement, self)
        self.requests.failed.connect(self.failed)
        self.placement.changed.connect(self.questions.ask_again)
        self.placement.changed.connect(self.execution.ask_prices)
        for edited in (self.pins.edited, self.runs.edited, self.execution.measured):
            edited.connect(self.mark_unsaved)
        client.notified.connect(self._notified)

    @property
    def handle(self) -> str:
        """Returns the engine's name of the document; empty while the engine does not have it."""
        return self.requests.handle

    @property
    def is_open(self) -> bool:
        """Tells whether the engine has opened it once."""
        return self.graph is not None

    @property
    def running(self) -> bool:
        """Tells whether a run is under way."""
        return self.execution.running

    @property
    def title(self) -> str:
        """Returns the name of the document's file, with a dot when there is something to save."""
        path = self.session_path or self.path or (self.model.path if self.model else "")
        name = path.replace("\\", "/").rsplit("/", 1)[-1] or "untitled"
        shape = self.shapes.shown
        if shape is not None and self.shapes.several:
            name += f" [{shape.choice.text}]"
        return name + (" •" if self.unsaved else "")

    @property
    def stale(self) -> bool:
        """Tells whether the shown placement was made under other pins than the current ones."""
        shown = self.placement.shown
        return shown is not None and shown.pins != self.pins.written

    @property
    def compared(self) -> Shown | None:
        """Returns the placement that numbers are compared with.

        It is None where it is the shown one, or where its partitions are not known.
        """
        reference, shown = self.comparison.reference, self.placement.shown
        if shown is None or self.comparison.is_itself():
            return None
        if reference.kind == "run":
            run = self.comparison.run
            if run is None or run.placement is None:
                return None
            pins = tuple(verdict.pin for verdict in run.pins)
            return Shown(run.placement, self.runs.title_of(run), run.id, pins)
        baseline, count = self.comparison.reference_baseline(), self.operators.count
        if baseline is None:
            return None
        placement = baseline_placement(baseline, self.costs.candidates, count)
        if placement is None:
            return None
        return Shown(placement, baseline_title(baseline))

    @property
    def compare_refusal(self) -> str:
        """Say why no two placements can be compared now; empty where they can."""
        if self.compared is not None:
            return ""
        if self.placement.shown is None:
            return "There is no placement yet."
        if self.comparison.is_itself():
            return "What is shown is what it would be compared with: choose another after Against."
        return "There is no other placement to compare with whose partitions are known."

    def left_to_win(self, placement: Placement) -> list[layers.Winnable]:
        """Return the parts of a placement, the dearest first, with what others take less."""
        run, count = self.runs.shown_or_last(), self.operators.count
        return layers.left_to_win(placement, self.costs.candidates, run, count)

    def layer_differences(self) -> list[layers.PartDifference]:
        """Return how the layers of what is compared differ from those of the shown placement.

        It is empty unless the layers of both were timed.
        """
        shown, compared = self.placement.shown, self.compared
        if shown is None or compared is None:
            return []
        if not shown.placement.layers or not compared.placement.layers:
            return []
        return layers.placement_differences(shown.placement, compared.placement)

    def show_placement(self, placement: Placement, title: str) -> None:
        """Show a placement that no run has confirmed, e.g. the runner-up."""
        self.placement.show(Shown(placement, title, None, self.pins.written))

    def mark_unsaved(self) -> None:
        """Note that there is something to save."""
        if not self.unsaved:
            self.unsaved = True
            self.title_changed.emit()
        self.edited.emit()

    # -- opening -----------------------------------------------------------------------

    def open_model(self, path: str) -> None:
        """Import an ONNX file, with the sizes of the last import; elsewhere by its content."""
        self.path = path
        sizes = dict(self.execution.settings.shapes)
        model = self._model_file()
        if model is None:
            return
        choices = tuple(entry.choice for entry in self.shapes.entries)
        if choices:  # the file changed, and what it is placed for did not
            again = protocol.ShapesOpen(model=model, choices=choices)
            self.requests.send(again, self._shapes_arrived, topic="open")
            return
        params = msgspec.structs.replace(model, shapes=sizes)
        refused = self.failed.emit if sizes else self._model_refused
        self.requests.send(params, self._admitted, refused, topic="open")

    def _model_file(self) -> protocol.ModelOpen | None:
        """Return the request by which the engine gets the model's file.

        It is None, with a failure announced, where the file cannot be read.
        """
        if not self.client.connection.is_remote:
            return protocol.ModelOpen(path=self.path)
        try:
            return model_by_value(self.path)
        except OSError as error:
            reason = f"{self.path}: {error.strerror}"
            QTimer.singleShot(0, self, lambda: self.failed.emit(reason))
            return None

    def _model_refused(self, reason: str) -> None:
        """Ask for sizes where the model leaves some open, which may be why it was refused."""

        def arrived(left_open: OpenSizes) -> None:
            if (left_open.dimensions or left_open.inputs) and not self.is_open:
                self.sizes_wanted.emit(left_open, reason)
            else:
                self.failed.emit(reason)

        self.ask_open_sizes(arrived, lambda _: self.failed.emit(reason))

    def ask_open_sizes(
        self, then: Callable[[OpenSizes], None], failed: Callable[[str], None]
    ) -> None:
        """Ask which sizes the model leaves open.

        Args:
            then: Called with them.
            failed: Called with a sentence where the engine cannot tell.
        """
        model = protocol.ModelOpen(path=self.model.path) if self.model else self._model_file()
        if model is not None:
            wanted = protocol.ModelDimensions(
                path=model.path, content=model.content, name=model.name
            )
            self.requests.send(wanted, then, failed)

    # -- several shapes ----------------------------------------------------------------

    def open_shapes(
        self, choices: tuple[ShapeChoice, ...], then: Callable[[], None] = lambda: None
    ) -> None:
        """Open the model for several shapes; runs of shapes that were open before are kept.

        Args:
            choices: The shapes.
            then: Called when the engine has opened them.
        """

        def arrived(answer: tuple[protocol.ShapeEntry, ...]) -> None:
            self._shapes_arrived(answer)
            then()

        model = None if self.handle else self._model_file()
        if not self.handle and model is None:
            return
        params = protocol.ShapesOpen(model=model, document=self.handle, choices=choices)
        self.requests.send(params, arrived, topic="open")

    def _shapes_arrived(self, entries: tuple[protocol.ShapeEntry, ...]) -> None:
        was_open = self.is_open
        self.shapes.take(entries)
        if was_open:
            self.mark_unsaved()
        if self.shapes.shown is None:
            self.switch(entries[0], lambda: None, keep_pins=True)
        self.title_changed.emit()

    def switch(
        self, entry: protocol.ShapeEntry, then: Callable[[], None], keep_pins: bool = False
    ) -> None:
        """Show the document of another shape.

        Args:
            entry: The shape.
            then: Called when its graph has arrived.
            keep_pins: Whether it has the pins of the shape that was shown, where it has none.
        """
        if entry.document == self.handle:
            then()
            return
        if self.handle:
            self.runs.clear()
        self.undo.clear()  # its commands hold what belongs to the graph that goes
        self.requests.drop_all()
        execution = self.execution
        self.costs.clear()
        self.placement.show(None)
        self.requests.handle = entry.document
        self.model = entry.model
        execution.settings = msgspec.structs.replace(execution.settings, shapes=entry.model.shapes)
        self._ask_graph(keep_pins, then)

    def open_session(self, path: str, recovered: bool = False) -> None:
        """Open a session file.

        Args:
            path: The file.
            recovered: Whether it is a recovery copy, which saving must not write to.
        """
        if not recovered:
            self.path = self.path or path
            self.session_path = path
        # An engine that was started anew opens it again: what was chosen since then stays.
        self._restore_settings = self.graph is None
        self.requests.send(protocol.SessionOpen(path=path), self._admitted, topic="open")

    def _admitted(self, answer: protocol.ModelAnswer) -> None:
        self.requests.handle = answer.document
        self.model = answer.model
        self.path = self.path or answer.model.path
        self.shapes.take(answer.shapes)
        self.title_changed.emit()
        self._ask_graph(True, lambda: None)

    def _ask_graph(self, keep_pins: bool, then: Callable[[], None]) -> None:
        """Ask for the graph of the document.

        Args:
            keep_pins: Whether it gets the current pins where it has none.
            then: Called when the graph and the runs have arrived.
        """
        arrived = partial(self._graph_arrived, keep_pins=keep_pins, then=then)
        self.requests.send(protocol.GraphGet(document=self.handle), arrived, topic="graph")

    def _graph_arrived(
        self, answer: protocol.GraphAnswer, *, keep_pins: bool, then: Callable[[], None]
    ) -> None:
        self.graph = answer.graph
        self.operators = OperatorGraph(answer.graph)
        self.scopes = {g.id: g for g in sections(self.operators, name_scopes(self.operators))}
        self.first_collapsed = first_view(self.operators, self.scopes.values())
        self.selection.reset(self.operators)
        if self.pins.current and not answer.pins and keep_pins:
            self.pins.send()
        else:
            self.pins.current = answer.pins
        self.opened.emit()
        self.graph_changed.emit()
        self.pins.changed.emit()
        self.costs.refresh()

        def runs_arrived() -> None:
            placed = [r for r in self.runs.all if not (r.of_profile or was_wanted_quickly(r))]
            if self._restore_settings and placed:
                self.execution.restore_settings(placed[-1])
            self._restore_settings = False
            if self.runs.visible:
                self.runs.show(self.runs.visible[-1].id)
            self.shapes.changed.emit()
            self.title_changed.emit()
            then()

        self.runs.refresh(runs_arrived)

    # -- saving and closing ------------------------------------------------------------

    def save(self, path: str, then: Callable[[], None] = lambda: None) -> None:
        """Write everything of the document into a session file.

        Args:
            path: The file.
            then: Called when it is written.
        """

        def saved(_: protocol.Exported) -> None:
            self.session_path = path
            self.unsaved = False
            self.undo.setClean()
            self.title_changed.emit()
            then()

        self.runs.delete_hidden()
        self.requests.send(protocol.SessionSave(document=self.handle, path=path), saved)

    def save_recovery_copy(self, path: str) -> None:
        """Write a recovery copy; a failure is a line in the log, not a banner."""

        def failed(reason: str) -> None:
            self.requests.logged.emit("warning", f"No recovery copy could be written: {reason}")

        self.requests.send(protocol.SessionSave(document=self.handle, path=path), failed=failed)

    def close(self) -> None:
        """Stop listening to the engine, drop awaited answers, and let it free the document."""
        self.client.notified.disconnect(self._notified)
        self.requests.drop_all()
        handles = {self.handle, *(entry.document for entry in self.shapes.entries)} - {""}
        for handle in sorted(handles) if self.handle else ():
            self.requests.send(protocol.DocumentClose(document=handle), failed=lambda reason: None)
        self.requests.handle = ""  # nothing is asked any more

    # -- the engine's news -------------------------------------------------------------

    def engine_lost(self) -> None:
        """Note that the engine is gone: nothing runs, and what is known stays on the screen."""
        self.requests.handle = ""
        self.execution.engine_lost()

    def _notified(self, document: str, event: Event) -> None:
        if document != self.handle or not self.handle:
            return
        if isinstance(event, Measured):
            self.costs.take_measured(event)
        elif isinstance(event, Stage):
            self.execution.show_stage(event)
        elif isinstance(event, Progress):
            self.execution.show_progress(event)
        elif isinstance(event, Log):
            self.requests.logged.emit(event.level, event.text)
        elif isinstance(event, Provisional):
            self.execution.show_provisional(event.run)
        elif isinstance(event, Done):
            self.execution.end_run(event.state, event.run, event.reason)
