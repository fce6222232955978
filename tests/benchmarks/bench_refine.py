"""Local search against the paper's evolution, on end-to-end times of real models.

    python -m tests.benchmarks.bench_refine [MODEL …] [--trials N] [--threads N]

Both start from the same three best covers and get the same number of end-to-end measurements, each
timed in turn with the start cover. Printed per method: gain over the start as measured afresh,
additive error before and after, and optimality loss (the cover's estimate less the proven least).
Each method has a reference run of its own, so its gain is against its own start.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from collage_engine.cli.options import duration
from collage_engine.lowering.reference import original_outputs
from collage_engine.pipeline.budget import Budget
from collage_engine.pipeline.inputs import model_tolerance, representative_inputs
from collage_engine.pipeline.lazily import Needed
from collage_engine.pipeline.measuring import Measuring
from collage_engine.pipeline.problem import make_problem
from collage_engine.pipeline.refining import EndToEnd
from collage_engine.pipeline.rivals import part_of
from collage_engine.pipeline.transitions import transition_constants
from collage_engine.pipeline.workspace import Workspace
from collage_engine.records.settings import RunSettings
from collage_engine.search.api import k_best, solve
from collage_engine.search.evolve import Evolution
from collage_engine.search.refine import LocalSearch, Method, refine
from tests.benchmarks.place import model_file


def compare(name: str, trials: int, settings: RunSettings, folder: Path) -> None:
    workspace = Workspace(str(model_file(name, folder)), {})
    try:
        menu = workspace.menu(settings)
        model = workspace.model
        inputs = representative_inputs(model, settings)
        constants = transition_constants(workspace, menu, settings, lambda now: None)
        with Measuring(workspace, menu, settings, inputs, lambda event: None) as measuring:
            measuring.begin(menu.records)
            needed = Needed(
                model.graph, menu.records, constants,
                lambda known: make_problem(model.graph.record, known, (), constants, settings),
                measuring, Budget(settings.budget_s).deadline,
            )  # fmt: skip
            records = needed.measure(check=False)
        problem = make_problem(model.graph.record, records, (), constants, settings)
        answer = solve(problem, with_bounds=False)
        start = [rival.cover for rival in k_best(problem, 3)]
        by_id = {r.id: r for r in records}
        truth = original_outputs(model, inputs)
        methods: dict[str, Method] = {
            "local search": LocalSearch(problem, same={r.id: r.key for r in records}),
            "evolution": Evolution(problem, start[0]),
        }
        for label, method in methods.items():
            built = Path(tempfile.mkdtemp(dir=folder))
            whole = EndToEnd(
                model, lambda cover: tuple(part_of(by_id[str(c)]) for c in cover),
                inputs, truth, model_tolerance(model, settings), built,
            )  # fmt: skip
            try:
                found = refine(
                    problem, start, whole.measure, method=method, trials=trials,
                    lower_bound_us=answer.lower_bound_us,
                )  # fmt: skip
            finally:
                whole.close()
                shutil.rmtree(built, ignore_errors=True)
            gain = 1 - found.us / found.start_us if found.us and found.start_us else 0.0
            failed = sum(t.us is None for t in found.trials)
            count = f"{len(found.trials)} ({failed} failed)"
            print(f"| {name} | {label} | {count} | {_(found.start_us)} "
                  f"| {_(found.us)} | {gain:.1%} | {_(found.additive_error_before_us)} "
                  f"| {_(found.additive_error_after_us)} | {_(found.optimality_loss_us)} "
                  f"| {found.seconds:.0f} |", flush=True)  # fmt: skip
    finally:
        workspace.close()


def _(us: float | None) -> str:
    return "–" if us is None else f"{us:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["encoder", "light_squeezenet"])
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=duration, default=600.0)
    chosen = parser.parse_args()
    print("| model | method | measurements | start µs | best µs | gain | additive error before µs "
          "| after µs | optimality loss µs | s |")  # fmt: skip
    print("|" + "---|" * 10)
    settings = RunSettings(threads=chosen.threads, budget_s=chosen.budget)
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.models:
            compare(name, chosen.trials, settings, Path(folder))


if __name__ == "__main__":
    main()
