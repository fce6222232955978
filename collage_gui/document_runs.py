"""Running, trying and comparing one document."""

from __future__ import annotations

from collage_gui.document_pins import PinActions
from collage_gui.pinning import placement_by_hand
from collage_gui.session import Reference


class RunActions(PinActions):
    """Runs, measurements now, comparisons."""

    def run(self) -> None:
        if self.document.operators is not None and not self.document.running:
            self.banner.clear("run")
            self.document.start_run(self.run_settings.settings())

    def run_or_search(self) -> None:
        """Space: search again where costs are known, else run."""
        if self.document.measured:
            self.document.settings = self.run_settings.settings()
            self.document.search()
        else:
            self.run()

    def preflight(self) -> None:
        self.reveal("settings")
        self.run_settings.preflight()

    def cancel(self) -> None:
        self.document.cancel_run()

    def _finished(self, state: str, reason: str) -> None:
        if state == "cancelled":
            self.banner.say(
                "The run was cancelled; what was measured is kept.", "info", topic="run"
            )

    def _warn(self) -> None:
        runs = self.document.visible_runs
        if runs and runs[-1].warnings:
            text = "Take these numbers with care: " + "; ".join(runs[-1].warnings[:2])
            self.banner.say(text, "warning", "Measure again", self.run, topic="drift")

    def _measure(self, longer: bool) -> None:
        document = self.document
        candidate = document.candidates.get(document.candidate) if document.candidate else None
        if longer and candidate is not None:
            document.measure_now(candidate.nodes, True, (candidate.instance.toolchain,))
        elif document.selection:
            document.measure_now(document.selection, longer)

    def measure_selection(self) -> None:
        self._measure(False)

    def measure_longer(self) -> None:
        self._measure(True)

    def own_placement(self) -> None:
        own = placement_by_hand(self.document)
        if own:
            self.document.own_placements = (*self.document.own_placements, own)
            self.document.mark_unsaved()
            self.banner.say(
                "This placement becomes a baseline of the next run.", "info", "Run now", self.run
            )

    def _pins_taken(self) -> None:
        """The engine has the pins: search again at once, if there is anything to search."""
        document = self.document
        if self.preferences.get("search_on_pin") and document.measured and not document.running:
            if self.preferences.get("confirm_after_search"):
                self.run()
            else:
                document.search()

    # -- compare -----------------------------------------------------------------------

    def show_runner_up(self) -> None:
        document = self.document
        found = document.runners_up[0] if document.runners_up else None
        if found is None and document.explanation is not None:
            found = document.explanation.runner_up
        if found is not None:
            document.show_placement(found, "Runner-up")
        else:
            self.banner.say("The engine has named no runner-up yet.", "info")

    def show_last_run(self) -> None:
        if self.document.visible_runs:
            self.document.show_run(self.document.visible_runs[-1].id)

    def use_as_reference(self) -> None:
        shown = self.document.shown
        run = shown.run if shown and shown.run else None
        if run is None and self.document.visible_runs:
            run = self.document.visible_runs[-1].id
        if run is not None:
            self.document.set_reference(Reference("run", run))

    def reference_best(self) -> None:
        self.document.set_reference(Reference())

    def show_changes(self) -> None:
        self.set_mode("changes")
