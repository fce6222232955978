"""A run's promise on accuracy: where it is made, on which samples, and which covers keep it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from collage_engine.control.run_control import RunControl
from collage_engine.lowering.reference import original_outputs
from collage_engine.lowering.sensitivity import carried
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.accuracy import Accuracy, AccuracyTrial
from collage_engine.records.candidate import CandidateRecord, CoverPart
from collage_engine.records.counted import counted
from collage_engine.records.numbering import NodeIndex
from collage_engine.records.precision import FLOAT32, is_reduced
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.trials.accuracy import (
    ACCURACY,
    KeptTolerance,
    TriedCover,
    WiderProblem,
    keep_tolerance,
)
from collage_engine.trials.baselines import part_of
from collage_engine.trials.confirmation import Confirmation
from collage_engine.trials.contender import Sample
from collage_engine.trials.mixed_precision import products_of
from collage_engine.trials.proposals import Proposer, Trial

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

MORE_SAMPLES = 3
"""Further random inputs on which the tolerance must be kept; chosen. The user's own are taken as
said."""
NOTICED = 1e-5
"""Isolated relative errors below are those of float32 and need no weighing; chosen, above what
float32 sums of some thousand products differ by."""
WEIGH_S = 20.0
"""Seconds for following errors through the model, at most; chosen."""
COVERS = 2
"""Covers within the tolerance that are confirmed, the one in float32 not counted; chosen."""


Mixed = Callable[
    [Sequence[CandidateRecord], Mapping[int, float], Mapping[tuple[str, ...], float]],
    tuple[Problem, Sequence[CandidateRecord]],
]
"""Records, factors of errors by graph index, errors of covers → the problem with more records."""


def is_promised(settings: RunSettings) -> bool:
    """Whether covers are built for their error before the confirmation."""
    return settings.precision != FLOAT32 or settings.tolerance is not None


def further_samples(model: ImportedModel, settings: RunSettings) -> tuple[Sample, ...]:
    """Other random inputs than the run's, where it is not the user who gives them."""
    if not is_promised(settings) or settings.inputs_npz is not None or not model.inputs:
        return ()
    found = []
    for number in range(1, MORE_SAMPLES + 1):
        inputs = model.random_inputs(settings.seed + number)
        found.append(Sample(inputs, original_outputs(model, inputs)))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class ToleranceInput:
    """What keeping the tolerance is given.

    Attributes:
        model: the model.
        problem: the search's.
        records: all candidates.
        samples: on all of them the tolerance must be kept.
        tolerance: on the largest relative error of the model's outputs.
        widened: measures what lazy measuring had left out; asked when the fastest cover breaks the
            tolerance.
        mixed: adds candidates in two precisions and gives the problem of all; asked then, too.
        control: of the run: ends the following of errors through the model, and takes warnings.
        on_step: called before each step: covers so far, covers at most, and what is at work.
    """

    model: ImportedModel
    problem: Problem
    records: Sequence[CandidateRecord]
    samples: Sequence[Sample]
    tolerance: float
    widened: Callable[[], Sequence[CandidateRecord]]
    mixed: Mixed
    control: RunControl
    on_step: Callable[[int, int, str], None] = lambda done, total, now: None


Parts = tuple[CoverPart, ...]


def covers_within(given: ToleranceInput) -> Proposer[Parts, KeptTolerance]:
    """Propose covers until the fastest within the tolerance on all samples is found."""
    by_id = {record.id: record for record in given.records}
    errors: dict[tuple[str, ...], float] = {}
    done = 0

    def step(now: str) -> None:
        given.on_step(done, max(ACCURACY.tries, done + 1), now)

    def weigh() -> WiderProblem:
        step("what was left unmeasured")
        wider = given.widened()
        step("how far errors are carried")
        factors = factors_of(
            given.model, wider, [sample.inputs for sample in given.samples], given.control
        )
        step("partitions in two precisions")
        problem, records = given.mixed(wider, factors, errors)
        by_id.update({record.id: record for record in records})
        return WiderProblem(
            problem=problem,
            errors=isolated(records),
            reduced=reduced_of(records),
            arriving=weighed(given.model.graph, records, factors),
        )

    procedure = keep_tolerance(
        given.problem,
        isolated(given.records),
        reduced_of(given.records),
        given.tolerance,
        weigh,
    )
    trial: Trial | None = None
    while True:
        try:
            cover = next(procedure) if trial is None else procedure.send(trial)
        except StopIteration as finished:
            kept: KeptTolerance = finished.value
            return kept
        step("the error of a placement, end to end")
        done += 1
        trial = yield tuple(part_of(by_id[str(name)]) for name in cover)
        if trial.max_rel_error is not None:
            errors[tuple(map(str, cover))] = trial.max_rel_error


def summary_of(kept: KeptTolerance, tolerance: float) -> str:
    """What was found, in one phrase."""
    text = f"{counted(len(kept.tried), 'placement')} run for their error"
    best = kept.within[0] if kept.within else None
    if best is not None and best.max_rel_error is not None:
        text += f", the best within {tolerance:g} has {best.max_rel_error:.1e}"
    return text


def isolated(records: Sequence[CandidateRecord]) -> dict[CandidateId, float]:
    """Errors of candidates on their own true inputs."""
    return {
        record.id: record.cost.max_rel_error
        for record in records
        if record.cost.usable and record.cost.max_rel_error is not None
    }


def reduced_of(records: Sequence[CandidateRecord]) -> list[CandidateId]:
    """Candidates that compute in less than float32."""
    return [record.id for record in records if is_reduced(record.instance)]


def factors_of(
    model: ImportedModel,
    records: Sequence[CandidateRecord],
    samples: Sequence[Mapping[str, np.ndarray]],
    control: RunControl,
) -> dict[int, float]:
    """How far errors are carried from every node, by graph index, as far as candidates ask it."""
    graph = model.graph
    errors = isolated(records)
    wanted = {
        index
        for record in records
        if errors.get(record.id, 0.0) > NOTICED
        for index in graph.boundary(graph.close(graph.to_indices(record.nodes)))[1]
    }
    wanted.update(_named(graph, index) for index in products_of(model).values())
    threads = max((record.instance.threads for record in records), default=1)
    factor = carried(
        model,
        samples,
        wanted,
        threads=threads,
        limit_s=WEIGH_S,
        cancel=control.cancelled,
        warn=control.warn,
    )
    return downstream(graph, factor)


def _named(graph: DataflowGraph, index: NodeIndex) -> NodeIndex:
    """The value itself, or the next one that the user's model has.

    It has none of a convolution before its bias is added, for example.
    """
    while not graph.nodes[index].onnx_value and len(graph.users[index]) == 1:
        (index,) = graph.users[index]
    return index


def weighed(
    graph: DataflowGraph, records: Sequence[CandidateRecord], factors: Mapping[int, float]
) -> dict[CandidateId, float]:
    """Isolated errors as they arrive at the model's outputs.

    Each is multiplied by how far the model carries errors from the candidate's outputs; the whole
    model's outputs carry theirs no further.
    """
    errors = isolated(records)
    found: dict[CandidateId, float] = {}
    for record in records:
        error = errors.get(record.id)
        if error is None:
            continue
        found[record.id] = error
        if error > NOTICED and len(record.nodes) < len(graph.operators):
            outputs = graph.boundary(graph.close(graph.to_indices(record.nodes)))[1]
            found[record.id] *= math.sqrt(sum(factors[index] ** 2 for index in outputs) or 1.0)
    return found


def downstream(graph: DataflowGraph, factor: Mapping[int, float]) -> dict[int, float]:
    """The factor of every node: where it was not measured, the largest of its readers'."""
    found: dict[int, float] = {}
    for node in reversed(graph.nodes):
        index = node.index
        known = factor.get(index)
        if known is None:
            read = [found[user] for user in graph.users[index]]
            known = max(read, default=0.0)
            if graph.output_set >> index & 1 or not read:
                known = max(known, 1.0)
        found[index] = known
    return found


def chosen_covers(kept: KeptTolerance) -> list[TriedCover]:
    """What is confirmed: the fastest within the tolerance, and the one in float32."""
    found = list(kept.within[:COVERS])
    if kept.full is not None and kept.full in kept.within and kept.full not in found:
        found.append(kept.full)
    return found


def accuracy_of(
    settings: RunSettings,
    tolerance: float,
    samples: int,
    kept: KeptTolerance | None,
    confirmation: Confirmation,
    instances: Mapping[str, ToolchainInstance],
) -> Accuracy | None:
    """The record of the promise; None for a run that made none."""
    if kept is None:
        return None
    full = [
        o
        for o in confirmation.outcomes
        if o.contender.kind == "collage" and not o.reduced and o.measured_us is not None
    ]
    best = min(full, key=lambda o: o.measured_us or 0.0, default=None)
    return Accuracy(
        precision=settings.precision,
        tolerance=tolerance,
        samples=samples,
        max_rel_error=_number(confirmation.winner.max_rel_error),
        float32_us=None if best is None else best.measured_us,
        float32_max_rel_error=None if best is None else _number(best.max_rel_error),
        tried=tuple(
            AccuracyTrial(
                estimated_us=each.cost_us,
                partitions=len(each.cover),
                reduced=sum(is_reduced(instances[str(name)]) for name in each.cover),
                max_rel_error=_number(each.max_rel_error),
                reason=each.reason,
            )
            for each in kept.tried
        ),
    )


def _number(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else value
