"""Runs, searches, references and comparisons of one document."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from collage_engine.drawing.palette import learn
from collage_engine.records.answers import (
    PreflightAnswer,
    SearchAnswer,
)
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Placement, Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.typed import convert
from collage_engine.service import protocol
from collage_gui.commands import EditRun, HideRun
from collage_gui.session_compare import Comparing
from collage_gui.session_state import Shown


class RunsOfDocument(Comparing):
    """Costs, runs and what is compared with what."""

    # -- candidates and costs ----------------------------------------------------------

    def _refresh_candidates(self) -> None:
        """Ask for all candidates. While an answer is awaited, ask again only after it: a stream
        of new costs must not push the answer ahead of itself for ever."""
        if self._candidates_asked == self.handle:
            self._candidates_dirty = True
            return
        self._candidates_asked, self._candidates_dirty = self.handle, False
        self._request(
            "candidates.query",
            protocol.CandidatesQuery(document=self.handle, limit=500_000),
            self._candidates_arrived,
            self._candidates_failed,
            ticket="candidates",
        )

    def _candidates_failed(self, reason: str) -> None:
        self._candidates_asked = ""
        self.add_log("warning", reason)

    def _candidates_arrived(self, answer: protocol.CandidatesAnswer) -> None:
        self._candidates_asked = ""
        if self._candidates_dirty:
            self._refresh_candidates()
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

    @property
    def measured(self) -> bool:
        """Whether there is any cost to search with."""
        return any(cost.usable for cost in self.costs.values())

    # -- runs --------------------------------------------------------------------------

    def _refresh_runs(self, show_last: bool = False) -> None:
        def arrived(answer: protocol.RunsAnswer) -> None:
            self.runs = list(answer.runs)
            for run in self.runs:
                learn(run.toolchains)
            if self._restore_settings and self.runs:
                self._take_settings(self.runs[-1])
            self._restore_settings = False
            self.runs_changed.emit()
            if show_last and self.visible_runs:
                self.show_run(self.visible_runs[-1].id)

        self._request("runs.list", protocol.Document(document=self.handle), arrived, ticket="runs")

    def _take_settings(self, run: Run) -> None:
        """Go on with what a run was made with; its name was its own, and its inputs are not kept.

        Whether to confirm is for a command line to choose: the window always shows what was
        confirmed.
        """
        try:
            settings = convert(run.settings, RunSettings)
        except msgspec.ValidationError as error:
            self.add_log(
                "warning", f"the settings of {self.run_title(run)} cannot be read: {error}"
            )
            return
        self.settings = msgspec.structs.replace(settings, name="", inputs_npz=None, confirm=True)
        self.own_placements = settings.placements
        self.settings_restored.emit()

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
        return self.shown is not None and essence(self.shown.pins) != essence(self.pins)

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
            self.limits = answer.limits
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
        """One sentence: why no placement satisfies the pins and limits."""
        found = self.infeasible or {}
        reason = found.get("reason") or found.get("message")
        if not reason:
            reason = ", ".join(f"{key}: {value}" for key, value in found.items() if value)
        return f"No placement satisfies {self._demands}: {reason}"

    @property
    def _demands(self) -> str:
        """What a placement is held to: pins, limits, or both."""
        chosen = self.settings
        limited = (
            chosen.allow_runtimes
            or chosen.max_runtimes
            or chosen.max_artifact_bytes
            or chosen.licences
        )
        return " and ".join(["the pins"] * bool(self.pins) + ["the limits"] * bool(limited)) or (
            "the model on these toolchains"
        )

    def ask_preflight(self, settings: RunSettings) -> None:
        def arrived(answer: PreflightAnswer) -> None:
            self.preflight = answer
            self.preflight_changed.emit()
            self._refresh_candidates()

        params = protocol.RunStart(document=self.handle, settings=settings)
        self._request("run.preflight", params, arrived, ticket="preflight")

    def edit_run(self, id_: str, **fields: Any) -> None:
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


def essence(pins: tuple[Pin, ...]) -> tuple[Any, ...]:
    return tuple((p.kind, p.nodes, p.toolchain, p.device) for p in pins)
