"""Lazy measuring replayed: measure everything once, then lazily against those costs.

    python -m tests.benchmarks.bench_lazy_measuring [MODEL …] [--threads N] [--budget TIME]
        [--fusing-takes SHARE …]

A model is a name of ``tests.zoo`` or an .onnx file. All of its candidates are measured into the
store (or found there); then the run's own planner chooses what it would have measured, and gets the
stored costs. Printed, for each value of ``planning.estimates.FUSING_TAKES``: how many distinct
candidates are measured, whether the cover costs the same as with all of them measured, and what the
cover cost after the first rounds.
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
from collage_engine.planning import estimates
from collage_engine.records.cost import Cost
from collage_engine.records.cost_table import CostTable
from collage_engine.records.settings import RunSettings
from collage_engine.run.measurement_planner import MeasurementPlanner
from collage_engine.run.problem_data import ProblemData
from collage_engine.search.api import solve
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.timing.measurer import CandidateGroup
from collage_engine.transitions.transitions import transition_constants
from collage_engine.trials.mixes import groups_of
from tests.benchmarks.place import model_file

EVERY = 4
"""Waves between two looks at the best measured cover; chosen."""


class Stored:
    """Stands in for ``Measuring``: costs that were measured before."""

    def __init__(self, costs: Mapping[str, Cost]) -> None:
        self.costs = costs
        self.asked: set[str] = set()
        self.waves = 0
        self.planner: MeasurementPlanner | None = None
        self.after_us: dict[int, float] = {}

    def wave(self, groups: Sequence[CandidateGroup], deadline: float) -> dict[str, Cost]:
        self.waves += 1
        if self.planner is not None and self.waves % EVERY == 0:
            answer = solve(self.planner.data.problem(), with_bounds=False)
            self.after_us[len(self.asked)] = answer.cost_us or math.inf
        keys = {c.key for group in groups for c in group.candidates}
        self.asked |= keys
        return {key: self.costs[key] for key in keys}


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What lazy measuring would have done with a model."""

    distinct: int
    asked: int
    waves: int
    seconds: float
    lazy_us: float | None
    full_us: float | None
    is_measured: bool
    """Whether it ended because the best cover was measured throughout."""
    after_us: dict[int, float]
    """Cost of the best measured cover, by the number of candidates measured until then."""


def replay(graph: DataflowGraph, data: ProblemData) -> Replay:
    """Choose what to measure as a run does, with the costs in ``data`` as answers."""
    truth = {c.key: data.costs.isolated_cost(c.id) for c in data.candidates}
    full = solve(data.problem(), with_bounds=False)
    operators = sum(node.form == "call" for node in data.graph.nodes)
    whole = {c.id: truth[c.key] for c in data.candidates if len(c.nodes) == operators}
    stored = Stored(truth)
    began = time.process_time()
    groups = groups_of(call_graph(graph))
    planner = MeasurementPlanner(data.with_costs(CostTable(isolated=whole)), stored, groups)
    stored.planner = planner
    is_measured = planner.measure(data.candidates, math.inf)
    seconds = time.process_time() - began
    answer = solve(planner.data.problem(), with_bounds=False)
    return Replay(
        distinct=len(truth),
        asked=len(stored.asked),
        waves=stored.waves,
        seconds=seconds,
        lazy_us=answer.cost_us,
        full_us=full.cost_us,
        is_measured=is_measured,
        after_us=stored.after_us,
    )


def measured(name: str, settings: RunSettings, folder: Path) -> tuple[DataflowGraph, ProblemData]:
    """Measure a model's candidates, all of them."""
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
        data = ProblemData(
            graph=workspace.model.graph.record,
            candidates=menu.candidates,
            costs=costs,
            constants=constants,
            pins=(),
            settings=settings,
        )
        return workspace.model.graph, data
    finally:
        workspace.close()


def show(name: str, share: float, r: Replay) -> None:
    after = ", ".join(f"{count}: {us:.1f}" for count, us in r.after_us.items())
    print(
        f"| {name} | {share} | {r.distinct} | {r.asked} | {r.waves} | {r.seconds:.1f} "
        f"| {r.lazy_us:.2f} | {r.full_us:.2f} | {'yes' if r.is_measured else 'no'} | {after} |",
        flush=True,
    )


def head() -> None:
    print(
        "| model | fusing takes | distinct | measured | waves | s (CPU) | cover µs | with all µs "
        "| measured throughout | cover µs after so many |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["mnist"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=duration, default=1800.0)
    parser.add_argument("--fusing-takes", type=float, nargs="*", default=[estimates.FUSING_TAKES])
    chosen = parser.parse_args()
    settings = RunSettings(threads=chosen.threads, budget_s=chosen.budget, measure="all")
    head()
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.models:
            graph, data = measured(name, settings, Path(folder))
            for share in chosen.fusing_takes:
                estimates.FUSING_TAKES = share
                show(name, share, replay(graph, data))


if __name__ == "__main__":
    main()
