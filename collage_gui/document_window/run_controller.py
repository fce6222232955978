"""Carries out the actions that run, search, measure and compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from PySide6.QtCore import QObject, Signal

from collage_engine.records.shapes import STOPPED_BUDGET_S
from collage_engine.support.text import counted
from collage_engine.support.time_limits import SHORTEST_RUN_S
from collage_engine.wording.amounts import as_sentence, duration_text
from collage_engine.wording.figures import (
    enough_budget_s,
    few_measured_sentence,
    untimed_text,
)
from collage_engine.wording.titles import toolchain_title
from collage_gui.document.document import Document
from collage_gui.document.pin_prices import (
    faster_here,
    make_pin,
    price_of_pin,
    unmeasured_of_pin,
    with_pin,
)
from collage_gui.messages import Messages
from collage_gui.panels.run_settings import RunSettingsPanel
from collage_gui.preferences import Preferences

QUICK_S = 2 * SHORTEST_RUN_S
"""Seconds that a quick confirmation may take, so that one waits for it: those of the shortest run
for the placement on trial, and as many for the one that it is compared with."""


class RunQueue(QObject):
    """Has one run after the other begin: of several documents, or of the shapes of one."""

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._waiting: list[tuple[Document, Callable[[], None]]] = []
        self.busy: Document | None = None
        """The document of the run that goes on, or is about to begin."""

    def add(self, document: Document, starts: Iterable[Callable[[], None]]) -> None:
        """Add runs of a document; each begins as the one before has ended."""
        self._waiting += [(document, start) for start in starts]
        self._next()

    def waits(self, document: Document) -> bool:
        """Tell whether a document has runs that have not begun."""
        return any(other is document for other, _ in self._waiting)

    def withdraw(self, document: Document) -> None:
        """Take back what has not begun of a document's runs."""
        self._waiting = [entry for entry in self._waiting if entry[0] is not document]
        self.changed.emit()

    def end(self, document: Document) -> None:
        """Note that a document's run has ended."""
        if document is self.busy:
            self.busy = None
            self._next()

    def _next(self) -> None:
        if self.busy is None and self._waiting:
            self.busy, start = self._waiting.pop(0)
            start()
        self.changed.emit()


@dataclass(eq=False)
class RunController:
    """Starts what the engine does for a document, and says how it ended."""

    document: Document
    settings: RunSettingsPanel
    """The panel with the settings of the next run."""
    messages: Messages
    preferences: Preferences
    """Remember threads and budget for the next document."""
    queue: RunQueue
    """Has one run after the other begin."""
    _tried: str = ""
    """What the run under way tries; empty: it is no trial of a pin."""
    _ends_s: float = 0.0
    """When the budget of a run of several shapes is over, on the monotonic clock."""

    def __post_init__(self) -> None:
        document = self.document
        document.pins.accepted.connect(self._pins_accepted)
        document.runs.changed.connect(self._show_warnings)
        document.execution.finished.connect(self._finished)
        document.execution.searched.connect(self._searched)
        document.pins.changed.connect(self._pins_changed)
        document.placement.changed.connect(self._show_stale)

    def start(self) -> None:
        """Run with the settings of the panel, all shapes where there are several."""
        document, entries = self.document, self.document.shapes.entries
        if not document.is_open or document.running:
            return
        if document.shapes.several:
            # Asked anew, the shapes get the pins of the one that is shown.
            choices = tuple(entry.choice for entry in entries)
            start = partial(self._start, self._run_shape, *range(len(entries)))
            document.open_shapes(choices, start)
        else:
            self._start(self._run, None)

    def _start(self, start: Callable[[Any], None], *parts: Any) -> None:
        """Start runs, each with a part, or say which one they wait for."""
        document, busy = self.document, self.queue.busy
        if busy is document or self.queue.waits(document) or not document.handle:
            return
        self.queue.add(document, [partial(start, part) for part in parts])
        if busy is not None:
            text = f"This run begins when the one of {busy.title} has ended."
            self.messages.show_message(text, "info", "Cancel", self.cancel, topic="waiting")

    def _clear_messages(self) -> None:
        """Take away what was said of the last run, and what a new one may mend."""
        # A run also measures what may satisfy the pins.
        topics = ("run", "few measured", "drift", "waiting", "shapes", "infeasible", "stale")
        for topic in ("", "price", *topics):
            self.messages.clear(topic)

    def _run(self, budget_s: float | None) -> None:
        """Run what is shown, within another budget than that of the settings where it is given."""
        self._clear_messages()
        settings = self.settings.settings()
        self.preferences.remember_run(settings)
        self.document.execution.start(settings, budget_s=budget_s or settings.budget_s)

    def _run_shape(self, number: int) -> None:
        """Show a shape and run it: what is left of the budget is shared out among those left."""
        entries = self.document.shapes.entries
        if not number:
            self._ends_s = time.monotonic() + self.settings.settings().budget_s
        share_s = (self._ends_s - time.monotonic()) / (len(entries) - number)

        def start() -> None:
            if self.queue.busy is self.document:
                self._run(max(STOPPED_BUDGET_S, share_s))

        self.document.switch(entries[number], start)

    def _start_enough(self) -> None:
        """Run for as long as the last run says is enough; the settings keep that budget."""
        budget_s = enough_budget_s(self.document.runs.visible[-1])
        if budget_s is not None:
            self.settings.budget.setValue(round(budget_s))
        self.start()

    def search_or_start(self) -> None:
        """Search again where costs are known, else run."""
        execution = self.document.execution
        if self.document.costs.any_usable:
            execution.settings = self.settings.settings()
            execution.search()
        else:
            self.start()

    def confirm_quickly(self, tried: str = "", text: str = "") -> None:
        """Search under the current pins, and time what is found against the last run only.

        It takes ``QUICK_S`` at most.

        Args:
            tried: What the newest pin tries: its price is told at the end.
            text: Said while the run goes on.
        """
        if self.document.is_open and not self.document.execution.running:
            self._start(partial(self._run_quickly, tried), text)

    def try_here(self) -> None:
        """Pin the selected part to the toolchain that was faster there, and time the placement."""
        document, faster = self.document, faster_here(self.document)
        if faster is None:
            self.messages.show_message("No other toolchain was seen to be faster here.", "info")
            return
        pin = make_pin(document, "on", *faster)
        what = f"{document.operators.label_with_name(pin.nodes)} on {toolchain_title(faster[1])}"
        document.pins.edit(with_pin(document, pin), f"Try {what}")
        self.confirm_quickly(what, f"Trying {what}")

    def _run_quickly(self, tried: str, text: str) -> None:
        self._clear_messages()
        self._tried = tried
        if text:
            text = f"{text}, {duration_text(QUICK_S)} at most."
            self.messages.show_message(text, "info", "Cancel", self.cancel, topic="measuring")
        settings = self.settings.settings()
        budget_s = min(settings.budget_s, QUICK_S)
        self.document.execution.start(settings, confirmation="quick", budget_s=budget_s)

    def stop_and_keep(self) -> None:
        """End the run with its best placement; shapes that are left get a first answer only."""
        self._ends_s = 0.0
        self.document.execution.cancel(keep=True)

    def cancel(self) -> None:
        """Cancel the run and those that wait; what was measured is kept."""
        self.queue.withdraw(self.document)
        self.messages.clear("waiting")
        if self.document.running:
            self.document.execution.cancel()
        else:
            self.queue.end(self.document)

    def measure(self, longer: bool) -> None:
        """Measure the selection, or again and longer the candidate that is picked."""
        document = self.document
        candidate = document.costs.candidates.get(document.selection.candidate or "")
        if longer and candidate is not None:
            toolchains = (candidate.instance.toolchain,)
            document.execution.measure_now(candidate.nodes, True, toolchains)
        elif document.selection.operators:
            document.execution.measure_now(document.selection.operators, longer)

    # -- the document's news -----------------------------------------------------------

    def _search_follows(self) -> bool:
        """Tells whether other pins are searched for as soon as the engine has them."""
        document = self.document
        return document.costs.any_usable and not document.execution.running

    def _pins_accepted(self) -> None:
        """Search again as soon as the engine has the pins, if there is anything to search."""
        if self._search_follows():
            self.document.execution.search()

    def _show_warnings(self) -> None:
        visible = self.document.runs.visible
        if not visible or self.document.execution.running:
            return  # while a run goes on nothing is said of the one before
        run = visible[-1]
        few, budget_s = few_measured_sentence(run), enough_budget_s(run)
        text = " ".join(as_sentence(warning) for warning in run.warnings)
        late = untimed_text(run, visible[:-1])
        few = " ".join(filter(None, [as_sentence(late) if late else "", few]))
        if few:
            # A run that measured nothing has no rate from which a budget would follow.
            action, go_on = "Continue", self.start
            if budget_s is not None:
                action, go_on = f"Run for {duration_text(budget_s)}", self._start_enough
            self.messages.clear("drift")
            self.messages.show_message(
                f"{few} {text}".strip(), "warning", action, go_on, topic="few measured"
            )
            return
        self.messages.clear("few measured")
        if text:
            self.messages.show_message(text, "warning", "Measure again", self.start, topic="drift")
        else:
            self.messages.clear("drift")

    def _searched(self, infeasible: str) -> None:
        document = self.document
        if document.pins.wait_for_costs and not document.running:
            # The quick run measures what the pins need, and times what they give.
            left = sum(unmeasured_of_pin(document, pin) for pin in document.pins.current)
            what = counted(left, "candidate") if left else "what they need"
            self.confirm_quickly(text=f"The pins are not measured yet: measuring {what}")
        elif infeasible and not document.pins.wait_for_costs:
            self.messages.show_message(infeasible, "error", topic="infeasible")
        else:
            self.messages.clear("infeasible")

    def _pins_changed(self) -> None:
        """Take a message away with its cause: other pins may be satisfied."""
        if self.document.pins.infeasible is None:
            self.messages.clear("infeasible")
        # While a search is about to follow, nothing needs saying.
        stale, infeasible = self.document.stale, self.document.pins.infeasible is not None
        if infeasible or not stale or not self._search_follows():
            self._show_stale()

    def _show_stale(self) -> None:
        """Say that what is shown was made under other pins."""
        if self.document.stale and self.document.pins.infeasible is None:
            self.messages.show_message(
                "This placement was made with other pins.",
                "warning",
                "Search again",
                self.search_or_start,
                topic="stale",
            )
        else:
            self.messages.clear("stale")

    def _finished(self, state: str, reason: str) -> None:
        self.messages.clear("measuring")
        if state != "finished":
            self.queue.withdraw(self.document)
        self.queue.end(self.document)
        tried, self._tried = self._tried, ""
        undo, newest = self.document.undo.undo, len(self.document.pins.current) - 1
        if tried and state == "finished" and (price := price_of_pin(self.document, newest)):
            text = f"{tried}: {price} for the whole model."
            self.messages.show_message(text, "info", "Undo", undo, topic="price")
        if state == "cancelled":
            self.messages.show_message(
                "The run was cancelled; what was measured is kept.", "info", topic="run"
            )
