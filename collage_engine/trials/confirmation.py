"""Confirmation: the best few covers and all baselines, built whole and timed end to end.

Every contender is a process of its own with its own environment, so no pool of one spins in
another's time. Rounds go around the processes: one runs, the others sleep. The winner is chosen
on one set of rounds; what is reported comes from fresh ones, in fresh processes of those near it,
so the choice does not flatter itself. Should the fresh rounds contradict the choice, beyond doubt
or together with the first ones, the choice falls on what they favour, and fresher rounds are taken.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collage_engine.build.built import attribute_kernels
from collage_engine.machine.worker import WorkerError
from collage_engine.records.errors import ToolchainError
from collage_engine.trials.contender import Contender, ContenderResult, Difference, Sample
from collage_engine.trials.ranking import choose, difference
from collage_engine.trials.runner import ConfirmSettings, Field, OnProgress, Rounds
from collage_engine.trials.trial_job import KernelTime

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel


NEAR_ENOUGH = 1.06
"""Times the fastest: what is slower by more does not win for having another process."""
MOST_REOPENED = 4


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What was confirmed. ``winner`` is exported; ``named`` is what the user hears won."""

    outcomes: tuple[ContenderResult, ...]
    """One per contender given, in their order; equal covers share times."""
    winner: ContenderResult
    named: str
    """``collage``, or the name of the baseline that won."""
    tied: tuple[str, ...]
    """Names of the contenders that the selection could not tell from the fastest."""
    differences: dict[str, Difference]
    """Winner less each other contender, on the fresh rounds."""
    in_place_us: tuple[float, ...]
    """Time of each partition (execution order) inside the real run."""
    residual: tuple[KernelTime, ...]
    """Kernels outside every partition."""


def confirm(
    model: ImportedModel,
    contenders: Sequence[Contender],
    *,
    inputs: Mapping[str, np.ndarray],
    truth: Mapping[str, np.ndarray],
    tolerance: float,
    folder: Path,
    settings: ConfirmSettings | None = None,
    cancel: threading.Event | None = None,
    on_progress: OnProgress | None = None,
    more: Sequence[Sample] = (),
) -> Confirmation:
    """Build, check and time the contenders; choose one.

    ``truth`` is what the user's own file computes (``reference.original_outputs``); ``folder``
    is empty scratch space that must outlive the result, since the winner's module lies in it.
    ``more``: further samples on which every contender must keep the tolerance.
    Raises ``ToolchainError`` when no cover could be built with right numbers, ``Cancelled``.
    """
    settings = settings or ConfirmSettings()
    field = Field(
        model,
        inputs,
        truth,
        tolerance,
        folder,
        settings,
        cancel,
        on_progress or (lambda done, total, now: None),
        more,
    )
    try:
        return _confirm(field, contenders, settings)
    finally:
        field.close()


def _confirm(
    field: Field, contenders: Sequence[Contender], settings: ConfirmSettings
) -> Confirmation:
    distinct = _distinct(contenders)
    outcomes = list(distinct.values())
    field.total = 2 * len(outcomes) + settings.selection_rounds + settings.fresh_rounds + 1
    field.build([o for o in outcomes if not o.contender.python_session])
    field.gather(outcomes)
    if not any(o.exportable for o in outcomes):
        reasons = "; ".join(f"{o.contender.name}: {o.reason}" for o in outcomes)
        raise ToolchainError(f"no placement could be built with right numbers ({reasons})")

    rounds = field.rounds(outcomes, settings.selection_rounds, settings.budget_s * 0.45)
    for outcome in outcomes:
        outcome.selection_us = _medians(rounds, outcome)
    winner, tied = _select(outcomes, rounds)
    first = rounds
    field.reopen(_near(outcomes))
    rounds = field.rounds(outcomes, settings.fresh_rounds, settings.budget_s * 0.55)
    favoured, among = _select(outcomes, rounds)
    apart = difference(_medians(rounds, winner), _medians(rounds, favoured))
    misled = apart is not None and apart.low_us > 0
    if not misled and winner.reason is None and favoured is not winner:
        # Not beyond doubt by the fresh rounds alone: what do all of them say?
        favoured, among = _select(outcomes, _joined(first, rounds))
        misled = favoured is not winner
    if winner.reason is not None or misled:
        winner, tied = favoured, among  # noise misled the selection
        rounds = field.rounds(outcomes, settings.fresh_rounds, settings.budget_s * 0.3)
        if winner.reason is not None:
            raise ToolchainError(f"{winner.contender.name} failed while timed: {winner.reason}")
    for outcome in outcomes:
        outcome.rounds_us = _medians(rounds, outcome)
        outcome.calls_us = [call for _, calls in rounds.get(id(outcome), ()) for call in calls]
    field.peak_memory(outcomes)

    field.step("profiling the winner")
    in_place: list[float] = []
    residual: list[KernelTime] = []
    if winner.built is not None:
        try:
            seen = [(kernel.kernel, kernel.us) for kernel in field.profile(winner)]
        except (WorkerError, ToolchainError):
            seen = []  # what was timed stands; where in it the time goes is not known
        if seen:
            in_place, outside = attribute_kernels(winner.built.kernels, seen)
            residual = [KernelTime(kernel=name, us=us) for name, us in outside]
    return Confirmation(
        outcomes=tuple(_for_contender(contender, distinct) for contender in contenders),
        winner=winner,
        named=_name(winner, contenders),
        tied=tuple(o.contender.name for o in tied if o is not winner),
        differences={
            o.contender.name: apart
            for o in outcomes
            if o is not winner and (apart := difference(winner.rounds_us, o.rounds_us)) is not None
        },
        in_place_us=tuple(in_place),
        residual=tuple(residual),
    )


def _distinct(contenders: Sequence[Contender]) -> dict[tuple[object, ...], ContenderResult]:
    """One outcome per different module, in the contenders' order.

    A baseline timed in its toolchain's Python session brings its twin along: the same cover in
    our own module, which is what would be exported if it won.
    """
    distinct: dict[tuple[object, ...], ContenderResult] = {}
    for contender in contenders:
        if contender.reason is None:
            distinct.setdefault(contender.key, ContenderResult(contender=contender))
    for contender in contenders:
        if contender.reason is None and contender.python_session:
            twin = replace(contender, name=f"{contender.name} (artifact)", python_session=False)
            distinct.setdefault(twin.key, ContenderResult(contender=twin))
    return distinct


def _for_contender(
    contender: Contender, distinct: Mapping[tuple[object, ...], ContenderResult]
) -> ContenderResult:
    if contender.reason is not None:
        return ContenderResult(contender=contender, reason=contender.reason)
    return replace(distinct[contender.key], contender=contender)


def _name(winner: ContenderResult, contenders: Sequence[Contender]) -> str:
    """The baseline whose cover the winner has, else ``collage``."""
    cover = winner.contender.key
    for contender in contenders:
        if contender.kind != "collage" and replace(contender, python_session=False).key == cover:
            return contender.name
    return "collage"


def _joined(first: Rounds, second: Rounds) -> Rounds:
    """Both sets of rounds of those that are in both."""
    return {key: [*first[key], *taken] for key, taken in second.items() if key in first}


def _medians(rounds: Rounds, outcome: ContenderResult) -> list[float]:
    return [median for median, _ in rounds.get(id(outcome), ())]


def _near(outcomes: Sequence[ContenderResult]) -> list[ContenderResult]:
    """Those that may still win, the fastest first. There is nothing to choose from one."""
    medians = [
        (float(np.nanmedian(o.selection_us)), o)
        for o in outcomes
        if o.exportable and not np.isnan(o.selection_us).all()
    ]
    medians.sort(key=lambda each: each[0])
    near = [o for median, o in medians if median <= medians[0][0] * NEAR_ENOUGH]
    return near[:MOST_REOPENED] if len(near) > 1 else []


def _select(
    outcomes: Sequence[ContenderResult], rounds: Rounds
) -> tuple[ContenderResult, list[ContenderResult]]:
    """The winner of some rounds among what can be exported, and what is tied with it."""
    fit = [(o, _medians(rounds, o)) for o in outcomes if o.exportable]
    if not fit:
        raise ToolchainError("every placement failed while it was timed")
    return choose(fit)
