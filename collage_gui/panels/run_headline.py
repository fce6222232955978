"""Says how fast the shown placement is: in the run's headline, and in a line over the graph."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFrame, QHBoxLayout

from collage_engine.records.placement import Run
from collage_engine.wording.amounts import time_text
from collage_engine.wording.facts import accuracy_facts
from collage_engine.wording.figures import (
    answer_text,
    bound_text,
    drift_text,
    ending_sentences,
    estimate_text,
    latency_text,
    partition_sum_text,
    speed_text,
    toolchains_text,
    verdict_sentence,
    why_not_found,
    winner_title,
)
from collage_engine.wording.sentences import RUN_GOES_ON
from collage_engine.wording.titles import baseline_title
from collage_gui.document.document import Document
from collage_gui.widgets import ElidedLabel, action_button, lay_out, named, tool_button


def headline(document: Document) -> str:
    """Return latency and gain as a text: ``441 µs measured · 12 % faster than TVM only (…)``."""
    if document.placement.shown is None:
        return ""
    placement = document.placement.shown.placement
    comparison, run = document.comparison, document.runs.shown_or_last()
    if run is not None and run.of_profile:
        return verdict_sentence(run)
    if comparison.reference.kind == "best":
        return answer_text(
            placement, run, [each for each in document.runs.visible if each is not run]
        )
    (name, _), delta = comparison.reference_time(), comparison.difference()
    if delta is None or comparison.is_itself():
        return latency_text(placement)
    baseline = comparison.reference_baseline()
    name = name if baseline is None else baseline_title(baseline)
    other = f"{name} ({time_text(delta.other_us)})"
    return f"{latency_text(placement)} · {speed_text(delta, other)}"


def detail(document: Document, run: Run | None) -> str:
    """Return partitions, estimate, winner, lower bound, accuracy, what is missing, limits."""
    shown = document.placement.shown
    if shown is None:
        return (
            "A run measures the candidates, searches for the fastest placement and confirms it end "
            "to end against every baseline."
        )
    parts = [shown.title, toolchains_text(shown.placement), partition_sum_text(shown.placement)]
    if shown.placement.measured_us is not None:
        parts.append(estimate_text(shown.placement))
    if run is not None and shown.run == run.id:
        parts += _run_texts(document, run)
    return " · ".join(filter(None, parts))


def _run_texts(document: Document, run: Run) -> list[str]:
    if run is document.runs.provisional or run.of_profile:
        return []
    parts = []
    if run.winner != "collage":
        parts.append(f"{winner_title(run)} is exported")
    parts.append(bound_text(run))
    if run.accuracy is not None:
        parts += [f"{fact.name} {fact.value}" for fact in accuracy_facts(run)]
    parts += [limit.reason or limit.text for limit in run.limits]
    reference = document.comparison.reference
    other = document.runs.find(reference.name) if reference.kind == "run" else None
    if other is not None and other is not run:
        parts.append(drift_text(run, other, document.runs.title_of(other)))
    return parts


def remark(document: Document, run: Run | None) -> str:
    """Return what a reader must know of a run's figures: too few measured, or no mix."""
    shown = document.placement.shown
    if run is None or shown is None or shown.run != run.id:
        return ""
    if run is document.runs.provisional:
        return (
            RUN_GOES_ON
            if run.provisional
            else (
                "The run was cancelled. This is the best placement that it had found: it was timed "
                "once and is not kept in the session."
            )
        )
    sentences = [*ending_sentences(run), why_not_found(run)]
    return " ".join(filter(None, sentences))


AGAIN = "confirm_quickly"
"""The action that measures again, where measurements do not decide."""
BUTTONS = {
    "try_here": "Try it here",
    AGAIN: "Measure again",
    "save": "Save",
    "artifact": "Export",
    "split": "Compare",
}
"""The actions that belong to an answer, by id, with what their buttons are called there."""


class AnswerLine(QFrame):
    """One line, which stands there before there is an answer: the graph must not move for it."""

    def __init__(self, document: Document, actions: Mapping[str, QAction]) -> None:
        """Listen to what is shown.

        Args:
            document: The document.
            actions: The main window's actions by id.
        """
        super().__init__()
        self._document = document
        self.setObjectName("answerLine")
        self.text = named(ElidedLabel("heading"), "answer")
        self.buttons = {
            name: action_button(actions[name], title, f"{name}Answer", tool_button)
            for name, title in BUTTONS.items()
        }
        parts = ((self.text, 1), *self.buttons.values())
        lay_out(QHBoxLayout(self), *parts, edge=1)
        comparison = document.comparison
        for changed in (
            document.placement.changed,
            document.runs.changed,
            comparison.reference_changed,
            comparison.changed,
            document.execution.running_changed,
        ):
            changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Show the latency of what is shown now."""
        running = self._document.execution.running
        unknown = "No placement is timed yet" if running else "Run to see how fast the model can be"
        self.text.setText(headline(self._document) or unknown)
        self.buttons[AGAIN].setVisible(not self._document.comparison.is_decided())
