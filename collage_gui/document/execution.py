"""Starts and follows what the engine does for one document: runs, searches, measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from PySide6.QtCore import QObject, Signal

from collage_engine.records import protocol
from collage_engine.records.answers import SearchAnswer
from collage_engine.records.event import Progress, Stage
from collage_engine.records.pin import LimitVerdict
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.support.text import counted
from collage_engine.support.typed import convert
from collage_engine.wording.amounts import duration_text
from collage_engine.wording.figures import latency_us
from collage_engine.wording.sentences import STAGE_TITLES
from collage_gui.document.pin_set import PinSet
from collage_gui.document.questions import CostTable
from collage_gui.document.runs import Runs
from collage_gui.document.shown import Shown, ShownPlacement
from collage_gui.engine_client import EngineRequests


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

    def __init__(
        self,
        requests: EngineRequests,
        costs: CostTable,
        pins: PinSet,
        placement: ShownPlacement,
        runs: Runs,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._requests, self._costs, self._pins = requests, costs, pins
        self._placement, self._runs = placement, runs
        self.settings = RunSettings()
        self.running = False
        self.cancelling = False
        self.stopping = False
        """Whether the run under way was told to end with its best placement so far."""
        self.is_quick = False
        """Whether the run under way is a quick confirmation."""
        self.provisional: Run | None = None
        """What the run under way has found so far."""
        self.stages: dict[str, Stage] = {}
        self.progress: Progress | None = None
        self.limits: tuple[LimitVerdict, ...] = ()
        """What became of the limits in the last search; a run has its own."""
        self._pins_at_start: tuple[str, ...] = ()

    # -- runs --------------------------------------------------------------------------

    def start(self, settings: RunSettings | None = None) -> None:
        """Run: first a search on what is known colours the graph, then the run confirms.

        Args:
            settings: Settings of this run and of later searches; the last ones by default.
        """
        if self.running or not self._requests.handle:
            return
        if settings is not None:
            self.settings = settings
        self.running, self.cancelling, self.stopping = True, False, False
        self.stages, self.progress, self.provisional = {}, None, None
        self._runs.provisional = None
        self._pins_at_start = self._pins.written
        self.running_changed.emit()
        self.is_quick = self.settings.confirmation == "quick"
        if self._costs.any_usable and not self.is_quick:
            self.search(quiet=True)
        params = protocol.RunStart(document=self._requests.handle, settings=self.settings)
        self._requests.send(params, failed=self._start_failed)

    def cancel(self) -> None:
        """Cancel the run; what was measured is kept."""
        if self.running and not self.cancelling:
            self.cancelling = True
            self.running_changed.emit()
            self._requests.send(protocol.RunCancel(document=self._requests.handle))

    def stop_and_keep(self) -> None:
        """End the run with its best placement so far, which is confirmed quickly."""
        if self.running and not self.stopping and not self.cancelling:
            self.stopping = True
            self.running_changed.emit()
            self._requests.send(protocol.RunCancel(document=self._requests.handle, keep=True))

    def show_provisional(self, run: Run) -> None:
        """Take what the run under way has found so far; later stages may improve it.

        It is shown unless a placement stays on the screen that was measured to be faster under the
        same pins, such as that of the run before.
        """
        if not self.running or (self.is_quick and self._placement.shown is not None):
            return  # what is shown while it is confirmed stays until there is an answer
        self.provisional = self._runs.provisional = run
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
        self.progress = self.provisional = None

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
                    expected = answer.placement.measured_us is None
                    title = "Search on stored costs"
                    self._placement.show(Shown(answer.placement, title, None, expected, pins))
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
