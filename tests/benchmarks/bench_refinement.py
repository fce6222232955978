"""Local search against the paper's evolution, on end-to-end times of real models.

    python -m tests.benchmarks.bench_refinement [MODEL …] [--trials N,N] [--seeds N] [--threads N]

Both start from the one cover that the search finds, on costs alone, of candidates of a few
operators: what the paper's first level gives its second. Both may then use all candidates, and get
the same number of end-to-end measurements, each timed in turn with that start in the same rounds.
A cover that both propose is built and measured once, and both are told the same. The few that look
best to a method are measured once more before one of them replaces the start, as in a run. In the
end the start and all winners run at once and are timed afresh, in turn, round by round: what is
printed is from these rounds only. Per method, model and number of measurements: the gain over the
start, of the seeds the middle one, with a 95 % interval (resampled over seeds and rounds), and
every seed's gain; and how much faster local search's winner is than evolution's.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from collage_engine.candidates.inputs import model_tolerance, representative_inputs
from collage_engine.candidates.open_model import OpenModel
from collage_engine.cli.options import duration
from collage_engine.control.budget import Budget
from collage_engine.control.run_control import RunControl
from collage_engine.lowering.reference import original_outputs
from collage_engine.records.candidate import Candidate, CandidateRecord
from collage_engine.records.cost import Cost
from collage_engine.records.settings import RunSettings
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.stages.needed import Needed
from collage_engine.search.api import solve
from collage_engine.search.bayesian_proposer import BayesianProposer
from collage_engine.search.measured_covers import Cover, cover_key
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.search.refine import CoverMeasurement, CoverProposer
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.transitions.transitions import transition_constants
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.placement_process import TrialModel
from collage_engine.trials.proposals import Proposal
from collage_engine.trials.refinement import REFINEMENT, measurement_of
from collage_engine.trials.runner import TrialRunner
from tests.benchmarks.place import model_file
from tests.support.evolution import Evolution
from tests.support.refining import refine

PIECE = 4
ROUNDS = 25
"""Fresh ones, in the end."""
RESAMPLED = 2000


def measured(workspace: OpenModel, settings: RunSettings) -> tuple[Problem, list[CandidateRecord]]:
    """The problem on costs alone, and its candidates."""
    menu = workspace.menu(settings)
    model = workspace.model
    inputs = representative_inputs(model, settings)
    constants = transition_constants(workspace, menu, settings, RunControl(), lambda now: None)
    data = ProblemData(
        graph=model.graph.record,
        candidates=menu.candidates,
        costs=menu.costs,
        constants=constants,
        pins=(),
        settings=settings,
    )
    with Measuring(workspace, menu, settings, inputs, RunControl()) as measuring:
        measuring.begin(data.candidates, data.costs)
        needed = Needed(model.graph, data, measuring, Budget(settings.budget_s).deadline)
        data = data.with_costs(needed.measure(audit=False))
    return data.problem(), data.records()


def first_level(problem: Problem) -> Cover:
    """The best cover of candidates of at most ``PIECE`` operators, or twice that, and so on."""
    most = PIECE
    while True:
        pieces = [
            c
            if len(c.nodes) <= most
            else msgspec.structs.replace(c, state="invalid", cost_us=None, reason="too large")
            for c in problem.candidates
        ]
        found = solve(msgspec.structs.replace(problem, candidates=tuple(pieces)), with_bounds=False)
        if found.cover:
            return found.cover
        most *= 2


def compare(
    name: str, budgets: Sequence[int], seeds: int, settings: RunSettings, folder: Path
) -> None:
    workspace = OpenModel(str(model_file(name, folder)), {})
    built = Path(tempfile.mkdtemp(dir=folder))
    try:
        problem, records = measured(workspace, settings)
        start = first_level(problem)
        by_id = {r.id: r for r in records}
        same: dict[CandidateId, str] = {r.id: r.key for r in records}
        model = workspace.model
        inputs = representative_inputs(model, settings)
        runner = TrialRunner(
            TrialModel.of(model),
            [Sample(inputs, original_outputs(model, inputs))],
            model_tolerance(model, settings),
            built,
        )

        def candidates_of(cover: Sequence[CandidateId]) -> tuple[Candidate, ...]:
            return tuple(by_id[str(c)] for c in cover)

        def trial_of(cover: Cover, rounds: int) -> CoverMeasurement:
            chosen = candidates_of(cover)
            runs = REFINEMENT.runs_per_profile
            trial = Proposal(cover=chosen, rounds=rounds, profiles=1, runs_per_profile=runs)
            return measurement_of(runner.run(trial))

        known: dict[frozenset[str], CoverMeasurement] = {}

        def measuring() -> Callable[[Cover], Cost]:
            asked: set[frozenset[str]] = set()

            def measure(cover: Cover) -> Cost:
                key = cover_key(cover)
                if key in asked:
                    return trial_of(cover, REFINEMENT.confirmed_rounds).cost
                asked.add(key)
                if key not in known:
                    known[key] = trial_of(cover, REFINEMENT.rounds)
                return known[key].cost

            return measure

        methods: dict[str, Callable[[int], CoverProposer]] = {
            "local search": lambda seed: BayesianProposer(problem, seed=seed, same=same),
            "evolution": lambda seed: Evolution(problem, start, seed=seed),
        }
        winners: dict[tuple[str, int], list[Cover]] = {
            (label, trials): [] for trials in budgets for label in methods
        }
        began = time.monotonic()
        try:
            for seed, trials in itertools.product(range(seeds), budgets):
                for label, make in methods.items():
                    found = refine(
                        problem,
                        [start],
                        measuring(),
                        method=make(seed),
                        trials=1 + trials,
                        inside=lambda cover: known[cover_key(cover)].inside,
                    )
                    winners[label, trials].append(found.cover)
            every = {cover_key(c): c for c in (start, *itertools.chain(*winners.values()))}
            rounds = together(runner, [candidates_of(cover) for cover in every.values()])
            taken = dict(zip(every, rounds, strict=True))
        finally:
            runner.close()
        for trials in budgets:
            ours = {label: winners[label, trials] for label in methods}
            tell(name, trials, taken, cover_key(start), ours)
        print(
            f"| | {len(known)} covers measured, {time.monotonic() - began:.0f} s | | | | |",
            flush=True,
        )
    finally:
        shutil.rmtree(built, ignore_errors=True)
        workspace.close()


def together(runner: TrialRunner, covers: Sequence[tuple[Candidate, ...]]) -> list[list[float]]:
    """Medians of ``ROUNDS`` rounds of these covers, in µs, in turn; all of them loaded at once."""
    processes = [
        runner.process(Contender(name="again", kind="collage", cover=cover)) for cover in covers
    ]
    runner.build(processes)
    runner.load(processes)
    taken: list[list[float]] = [[] for _ in processes]
    for _ in range(ROUNDS):
        for process, times in zip(processes, taken, strict=True):
            calls = runner.timed_round(process)
            if calls is None:
                raise SystemExit(f"a cover cannot be timed again: {process.failure}")
            times.append(median(calls))
    return taken


def tell(
    name: str,
    trials: int,
    taken: Mapping[frozenset[str], Sequence[float]],
    start: frozenset[str],
    winners: Mapping[str, Sequence[Cover]],
) -> None:
    """One line per method, and one for both."""
    keys = {label: [cover_key(c) for c in covers] for label, covers in winners.items()}
    for label, ours in keys.items():
        each = [1 - ratio(taken[key], taken[start]) for key in ours]
        low, high = interval([(taken[key], taken[start]) for key in ours])
        print(
            f"| {name} | {label} | {trials} | {median(taken[start]):.1f} "
            f"| {median(median(taken[key]) for key in ours):.1f} "
            f"| {median(each):.1%} ({1 - high:.1%} to {1 - low:.1%}) "
            f"| {', '.join(f'{gain:.1%}' for gain in each)} |",
            flush=True,
        )
    pairs = [
        (taken[a], taken[b]) for a, b in zip(keys["local search"], keys["evolution"], strict=True)
    ]
    low, high = interval(pairs)
    better = 1 - median(ratio(a, b) for a, b in pairs)
    print(
        f"| {name} | local search's against evolution's | {trials} | | "
        f"| {better:.1%} ({1 - high:.1%} to {1 - low:.1%}) | |",
        flush=True,
    )


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Of the same rounds."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def interval(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[float, float]:
    """95 % of the median ratio, over seeds and rounds."""
    rng = random.Random(0)
    found = []
    for _ in range(RESAMPLED):
        chosen = rng.choices(pairs, k=len(pairs))
        rounds = rng.choices(range(len(chosen[0][0])), k=len(chosen[0][0]))
        found.append(median(median(a[k] / b[k] for k in rounds) for a, b in chosen))
    found.sort()
    return found[int(0.025 * RESAMPLED)], found[int(0.975 * RESAMPLED)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["mnist", "light_squeezenet"])
    parser.add_argument("--trials", default="4,12")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=duration, default=600.0)
    chosen = parser.parse_args()
    print(
        "| model | method | measurements | start µs | winner µs | gain (95 %) | gain of each seed |"
    )
    print("|" + "---|" * 7)
    budgets = [int(trials) for trials in chosen.trials.split(",")]
    settings = RunSettings(threads=chosen.threads, budget_s=chosen.budget)
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.models:
            compare(name, budgets, chosen.seeds, settings, Path(folder))


if __name__ == "__main__":
    main()
