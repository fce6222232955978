"""Lazy measuring proved by replay: measure everything once, then lazily against those costs.

    python -m tests.benchmarks.bench_needed_candidates [MODEL …] [--threads N] [--budget TIME]

A model is a name of ``tests.zoo`` or an .onnx file. All of its candidates are measured into the
store (or found there); then the pipeline's own code chooses what it would have measured, and gets
the stored costs. Printed: how many distinct candidates stay unmeasured, whether the cover costs
the same as with all of them measured, and how many bounds the costs contradict.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from collage_engine.candidates.inputs import representative_inputs
from collage_engine.candidates.open_model import OpenModel
from collage_engine.cli.options import duration
from collage_engine.control.budget import Budget
from collage_engine.control.run_control import RunControl
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.call_graph import call_graph
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import Cost
from collage_engine.records.cost_table import CostTable
from collage_engine.records.settings import RunSettings
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.stages.needed import Needed
from collage_engine.search.api import solve
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.timing.measurer import CandidateGroup
from collage_engine.transitions.transitions import transition_constants
from collage_engine.trials.baselines import baselines
from tests.benchmarks.place import MODELS, model_file


class Stored:
    """Stands in for ``Measuring``: costs that were measured before."""

    def __init__(self, costs: Mapping[str, Cost]) -> None:
        self.costs = costs
        self.asked: set[str] = set()
        self.waves = 0

    def wave(self, groups: Sequence[CandidateGroup], deadline: float, left: int) -> dict[str, Cost]:
        self.waves += 1
        keys = {c.key for group in groups for c in group.candidates}
        self.asked |= keys
        return {key: self.costs[key] for key in keys}


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What lazy measuring would have done with a model."""

    distinct: int
    asked: int
    proven: int
    assumed: int
    waves: int
    seconds: float
    lazy_us: float | None
    full_us: float | None
    certified: bool
    same_cover: bool
    contradicted: int
    """Left-out candidates that are faster than their bound."""

    @property
    def left_out(self) -> float:
        return 1 - self.asked / self.distinct


def replay(graph: DataflowGraph, data: ProblemData, keep: Sequence[Candidate] = ()) -> Replay:
    """Choose what to measure as a run does, with the costs in ``data`` as answers."""
    truth = {c.key: data.costs.cost(c.id) for c in data.candidates}
    full = solve(data.problem(), with_bounds=False)
    stored = Stored(truth)
    blank = data.with_costs(CostTable(certified_bound_us=data.costs.certified_bound_us))
    began = time.process_time()
    needed = Needed(graph, blank, stored, math.inf, keep=keep)
    found = blank.with_costs(needed.measure(audit=True))
    seconds = time.process_time() - began
    answer = solve(found.problem(), with_bounds=False)
    contradicted = {
        c.key
        for c in found.candidates
        if not found.costs.known(c.id)
        and truth[c.key].usable
        and (found.costs.bound_us(c.id) or 0.0) > (truth[c.key].median_us or 0)
    }
    return Replay(
        distinct=len(truth),
        asked=len(stored.asked),
        proven=len(needed.proven),
        assumed=len(needed.assumed),
        waves=stored.waves,
        seconds=seconds,
        lazy_us=answer.cost_us,
        full_us=full.cost_us,
        certified=needed.certified,
        same_cover=set(answer.cover) == set(full.cover),
        contradicted=len(contradicted),
    )


def measured(name: str, settings: RunSettings, folder: Path) -> Replay:
    """Measure a model's candidates, all of them, and replay."""
    workspace = OpenModel(str(model_file(name, folder)), {})
    try:
        menu = workspace.menu(settings)
        inputs = representative_inputs(workspace.model, settings)
        with Measuring(workspace, menu, settings, inputs, RunControl()) as measuring:
            deadline = Budget(settings.budget_s).deadline
            costs = measuring.add(menu.candidates, menu.costs, deadline)
        missing = sum(not costs.known(c.id) for c in menu.candidates)
        if missing:
            raise SystemExit(f"{name}: {missing} candidates were not reached; give more --budget")
        constants = transition_constants(workspace, menu, settings, RunControl(), lambda now: None)
        contenders = baselines(call_graph(workspace.model.graph), menu, settings, 0)
        keep = [part for contender in contenders for part in contender.cover]
        data = ProblemData(
            graph=workspace.model.graph.record,
            candidates=menu.candidates,
            costs=costs,
            constants=constants,
            pins=(),
            settings=settings,
        )
        return replay(workspace.model.graph, data, keep)
    finally:
        workspace.close()


def show(name: str, r: Replay) -> None:
    same = "same" if r.same_cover else "equal cost" if r.lazy_us == r.full_us else "OTHER"
    print(
        f"| {name} | {r.distinct} | {r.asked} | {r.left_out:.1%} | {r.proven} | {r.assumed} "
        f"| {r.waves} | {r.seconds:.1f} | {r.lazy_us:.2f} | {r.full_us:.2f} | {same} "
        f"| {'yes' if r.certified else 'no'} | {r.contradicted} |",
        flush=True,
    )


def head() -> None:
    print(
        "| model | distinct | measured | left out | proven | assumed | waves | search s (CPU) "
        "| cover µs | with all µs | cover | certified | bounds contradicted |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=duration, default=1800.0)
    chosen = parser.parse_args()
    settings = RunSettings(threads=chosen.threads, budget_s=chosen.budget, measure="all")
    head()
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.models:
            show(name, measured(name, settings, Path(folder)))


if __name__ == "__main__":
    main()
