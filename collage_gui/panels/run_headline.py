"""Says in one line how fast the shown placement is, and in a second what belongs to it."""

from __future__ import annotations

from collage_engine.records.placement import Run
from collage_engine.wording.baselines import baseline_title
from collage_engine.wording.facts import accuracy_facts
from collage_engine.wording.figures import (
    answer_text,
    bound_text,
    drift_text,
    ending_sentences,
    estimate_text,
    latency_text,
    latency_us,
    partition_sum_text,
    speed_text,
    toolchains_text,
    verdict_sentence,
    why_not_found,
    winner_title,
)
from collage_engine.wording.formatting import time_text
from collage_engine.wording.runs import RUN_GOES_ON
from collage_gui.document.document import Document


def headline(document: Document) -> str:
    """Return latency and gain as a text: ``441 µs measured · 12 % faster than TVM only (…)``."""
    if document.placement.shown is None:
        return ""
    placement = document.placement.shown.placement
    comparison = document.comparison
    us, run = latency_us(placement), document.runs.shown_or_last()
    if run is not None and run.of_profile:
        return verdict_sentence(run)
    if comparison.reference.kind == "best":
        return answer_text(placement, run)
    name, reference_us = comparison.reference_time()
    if us is None or reference_us is None or comparison.is_itself():
        return latency_text(placement)
    baseline = comparison.reference_baseline()
    name = name if baseline is None else baseline_title(baseline)
    other = f"{name} ({time_text(reference_us)})"
    speed = speed_text(us, reference_us, other, comparison.is_decided())
    return f"{latency_text(placement)} · {speed}"


def detail(document: Document, run: Run | None) -> str:
    """Returns partitions, estimate, winner, lower bound, accuracy, what is missing, limits."""
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
    """Returns what a reader must know of a run's figures: too few measured, or no mix."""
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
