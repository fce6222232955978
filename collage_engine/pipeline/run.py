"""The whole run: import, enumerate, measure, search, build and confirm, export."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from collage_engine.lowering.reference import original_outputs
from collage_engine.machine.device import busy
from collage_engine.measure.measurer import group_candidates
from collage_engine.measure.protocol import sittings
from collage_engine.partition.call_graph import call_graph
from collage_engine.pipeline import cancel
from collage_engine.pipeline.accuracy import Kept
from collage_engine.pipeline.budget import Budget
from collage_engine.pipeline.coalescing import ROUNDS, merged_candidates
from collage_engine.pipeline.findings import Findings
from collage_engine.pipeline.infeasible import infeasible_details, raise_infeasible
from collage_engine.pipeline.inputs import model_tolerance, representative_inputs
from collage_engine.pipeline.lazily import Needed
from collage_engine.pipeline.limits import barred, constraints_of, runtime_facts
from collage_engine.pipeline.making_ready import make_ready
from collage_engine.pipeline.measuring import Measuring, with_costs
from collage_engine.pipeline.pins_of_cover import breaks_pin
from collage_engine.pipeline.precision import missing
from collage_engine.pipeline.problem import (
    RUNNERS_UP,
    UNDECIDED,
    best_placements,
    make_placement,
    make_problem,
    with_conversions,
)
from collage_engine.pipeline.promise import (
    accuracy_of,
    chosen_covers,
    covers_within,
    further_samples,
    is_promised,
)
from collage_engine.pipeline.refining import EndToEnd, refine_covers
from collage_engine.pipeline.results import RunOutcome
from collage_engine.pipeline.rivals import (
    COLLAGE,
    baselines,
    check_placements,
    cover_of,
    part_of,
)
from collage_engine.pipeline.stages import Emit, Stages
from collage_engine.pipeline.transitions import transition_constants
from collage_engine.pipeline.tuning import Tuning, told, worth_tuning
from collage_engine.pipeline.tuning_choice import with_tuned_pairs
from collage_engine.pipeline.unmeasured import compile_only
from collage_engine.pipeline.workspace import Menu, Workspace
from collage_engine.placement.artifact import ArtifactContents, write_artifact
from collage_engine.placement.confirm import Confirmation, confirm
from collage_engine.placement.rival import Rival, Sample
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.errors import InfeasibleError
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Placement
from collage_engine.records.precision import is_reduced
from collage_engine.records.settings import RunSettings
from collage_engine.records.tuning import TuneCounts
from collage_engine.search.api import Search, check, k_best, reuse, solve
from collage_engine.search.doubt import BUSY_DRIFT, DRIFT, Doubt, doubt, drift_between
from collage_engine.search.problem import Answer, Problem
from collage_engine.search.refine import Trial

DRAWS = 60
DOUBT_S = 0.4
"""For resampling, at most; the search itself is to be felt as immediate."""
SETTLED = 12
SETTLING_S = 20.0
"""Candidates measured again because much hangs on them, and the time for it."""
ENOUGH_TWICE = 8
"""Candidates measured twice that tell how much sittings differ."""
SETTLED_BELOW = 0.002
"""Not worth it when better knowledge would gain less than this share of the cover's cost."""


def run(
    open_workspace: Callable[[], Workspace],
    *,
    emit: Emit,
    settings: RunSettings,
    pins: tuple[Pin, ...],
    out: str | None,
    run_id: str,
) -> RunOutcome:
    """Do everything ``collage place`` does and return what was found out.

    Raises InfeasibleError when no placement satisfies the pins, Cancelled, or the CollageError
    that stopped it. Candidates and costs are handed to ``emit`` as they become known.
    """
    stages = Stages(emit)
    with stages.stage("import") as report:
        workspace = open_workspace()
        report.detail = f"{workspace.model.record.nodes} operators"
    # Opened before the run or in it: what reading the model took is told either way.
    stages.seconds["import"] = workspace.import_s
    return _Run(workspace, stages, settings, pins, out, run_id).run()


class _Run:
    """One run's state; each method is a stage."""

    def __init__(
        self,
        workspace: Workspace,
        stages: Stages,
        settings: RunSettings,
        pins: tuple[Pin, ...],
        out: str | None,
        run_id: str,
    ) -> None:
        self.workspace = workspace
        self.model = workspace.model
        self.graph = workspace.model.graph.record
        self.stages = stages
        self.settings = settings
        self.pins = pins
        self.out = out
        self.run_id = run_id
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self.tolerance = settings.tolerance or model_tolerance(workspace.model, settings)
        self.warnings: list[str] = []
        self.constants: dict[str, float] = {}
        self.records: list[CandidateRecord] = []
        self.left_out: str | None = None
        self.drift = DRIFT
        """Between sittings; what is measured twice tells."""
        self.tuning: TuneCounts | None = None
        self.more: tuple[Sample, ...] = ()
        self.kept: Kept | None = None
        self.budget = Budget(settings.budget_s)

    def run(self) -> RunOutcome:
        menu = self.enumerate()
        if menu.unmeasurable is not None:
            return compile_only(
                self.workspace, menu, self.stages, self.settings, self.pins, out=self.out,
                run_id=self.run_id, started_at=self.started_at, warnings=self.warnings,
            )  # fmt: skip
        noisy = busy()
        if noisy:
            self.drift = BUSY_DRIFT
            self.warn(noisy)
        inputs = representative_inputs(self.model, self.settings)
        with Measuring(self.workspace, menu, self.settings, inputs, self.stages.emit) as measuring:
            self.measure(menu, measuring)
            menu = self.tune(menu, measuring)
            answer, placements = self.search(menu)
            truth = original_outputs(self.model, inputs)
            self.more = further_samples(self.model, self.settings)
            if is_promised(self.settings):
                placements = self.keep_tolerance(placements, Sample(inputs, truth), measuring)
        if self.settings.refine_budget_s > 0:
            placements = self.refine(menu, placements, inputs, truth)
        confirmation = self.confirm(menu, placements, inputs, truth)
        findings = Findings(
            run_id=self.run_id, started_at=self.started_at, workspace=self.workspace, menu=menu,
            settings=self.settings, pins=self.pins, records=self.records,
            constants=self.constants, counts=measuring.counts, answer=answer,
            placements=placements, confirmation=confirmation, warnings=self.warnings,
            tuning=self.tuning,
            accuracy=accuracy_of(
                self.settings, self.tolerance, 1 + len(self.more), self.kept, confirmation,
                {record.id: record.instance for record in self.records},
            ),
        )  # fmt: skip
        chosen = findings.exported()
        artifact = self.export(menu, confirmation, chosen, inputs, truth)
        run = findings.document(chosen, self.stages.total(), artifact)
        return RunOutcome(
            candidates=self.records,
            not_offered=menu.not_offered,
            constants=self.constants,
            run=run,
        )

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        self.stages.warn(text)

    # -- stages ------------------------------------------------------------------------

    def enumerate(self) -> Menu:
        with self.stages.stage("enumerate") as report:
            report.progress(0, 1, "toolchains; the first time, their runtimes are compiled")
            menu = self.workspace.menu(self.settings)
            self.records = menu.records
            distinct = len({record.key for record in menu.records})
            report.detail = f"{len(menu.records)} candidates, {distinct} distinct"
            self.stages.emit(RunOutcome(candidates=menu.records, not_offered=menu.not_offered))
            names = [state.name for state in menu.states]
            check_placements(self.graph, self.model.record.folded, self.settings, names)
            offered = dict.fromkeys(r for offer in menu.offers for r in offer.instance.runtimes)
            self.constants = runtime_facts(tuple(offered), self.model.record.weights_bytes)
            self.refuse_what_cannot_be(menu)
        lacking = missing(self.settings.precision, [offer.instance for offer in menu.offers])
        if lacking:
            self.warn(lacking)
        return menu

    def refuse_what_cannot_be(self, menu: Menu) -> None:
        """Say at once that the pins contradict each other, or that a node has no toolchain:
        with every candidate free of charge, is there a cover at all?"""
        free = [
            msgspec.structs.replace(
                record,
                cost=msgspec.structs.replace(record.cost, state="measured", median_us=0.0),
            )
            for record in self.records
            if record.cost.state != "invalid"
        ]
        problem = make_problem(self.graph, free, self.pins, self.constants, self.settings)
        answer = solve(problem)
        if answer.infeasible is not None:
            raise_infeasible(self.graph, self.pins, answer, menu.not_offered)

    def measure(self, menu: Menu, measuring: Measuring) -> None:
        with self.stages.stage("measure") as report:
            total = len({record.key for record in self.records})
            self.constants |= transition_constants(
                self.workspace, menu, self.settings, lambda now: report.progress(0, total, now)
            )
            if self.settings.budget_s > 0:
                make_ready(
                    self.workspace, menu, self.records,
                    lambda now: report.progress(0, total, now), self.warn,
                )  # fmt: skip
            budget = self.budget = Budget(self.settings.budget_s)
            if self.settings.measure == "all":
                self.records = measuring.measure(budget, report)
            else:
                measuring.begin(self.records)
                full = [r for r in self.records if not is_reduced(r.instance)]
                if len(full) < len(self.records):
                    # What is needed without the rest as well: the rest may break the tolerance.
                    narrow = [r for r in self.records if is_reduced(r.instance)]
                    self.records = full
                    self.measure_needed(menu, measuring, Budget(budget.seconds / 2))
                    self.records = [*self.records, *narrow]
                self.measure_needed(menu, measuring, budget)
            # In this order: what is offered as one follows from the costs that are stored, so a
            # run from the store offers the same and finds it there.
            if self.settle(measuring, budget) and self.settings.measure != "all":
                self.measure_needed(menu, measuring, budget, check=False)
            self.coalesce(menu, measuring, budget)
            if self.left_out:
                self.stages.say(self.left_out)
            counts = measuring.counts
            report.detail = (
                f"{counts.measured} measured, {counts.from_store} from the store, "
                f"{counts.invalid} invalid, {counts.skipped} left unmeasured"
            )
            self.stages.emit(RunOutcome(candidates=self.records, constants=self.constants))

    def measure_needed(
        self, menu: Menu, measuring: Measuring, budget: Budget, check: bool = True
    ) -> None:
        """Measure what a better cover could contain, and what the baselines consist of."""
        calls = call_graph(self.model.graph)
        needed = Needed(
            self.model.graph, self.records, self.constants,
            lambda records: make_problem(
                self.graph, records, self.pins, self.constants, self.settings
            ),
            measuring, budget.deadline,
            keep=[part for r in baselines(calls, menu, self.settings, 0) for part in r.cover],
        )  # fmt: skip
        self.records = needed.measure(check=check and not self.measured_before())
        self.left_out = needed.words()
        measuring.counts = msgspec.structs.replace(
            measuring.counts, proven=len(needed.proven), assumed=len(needed.assumed)
        )

    def measured_before(self) -> bool:
        """Whether an earlier run, or this one, measured candidates already."""
        return any(record.cost.state == "measured" for record in self.records)

    def tune(self, menu: Menu, measuring: Measuring) -> Menu:
        """Offer tuned kernels beside the untuned ones: found now, or by earlier runs."""
        if not worth_tuning(self.workspace, menu, self.settings):
            return menu
        with self.stages.stage("tune") as report:
            instances = [offer.instance for offer in menu.offers]
            self.constants = with_tuned_pairs(self.constants, instances)
            tuning = Tuning(
                self.workspace, menu, self.settings, measuring, report,
                lambda records: make_problem(
                    self.graph, records, self.pins, self.constants, self.settings
                ),
                self.warn,
            )  # fmt: skip
            with closing(tuning):
                menu, self.records = tuning.run(self.records)
            self.tuning = tuning.counts
            report.detail = told(tuning.counts)
            self.stages.emit(RunOutcome(candidates=self.records, constants=self.constants))
        return menu

    def coalesce(self, menu: Menu, measuring: Measuring, budget: Budget) -> None:
        """Offer what touches in the best covers as one partition, measured."""
        for _ in range(ROUNDS):
            if budget.spent:
                return
            problem = self.problem()
            covers = [rival.cover for rival in k_best(problem, RUNNERS_UP + 1)]
            merged = merged_candidates(self.model, menu, problem, covers)
            if not merged:
                return
            stored = self.workspace.with_stored_costs(merged)
            self.stages.emit(RunOutcome(candidates=[*self.records, *stored]))
            self.records = [*self.records, *measuring.add(stored, budget.deadline)]

    def settle(self, measuring: Measuring, budget: Budget) -> bool:
        """Spend a little of what is left on the candidates whose exact cost matters most; whether
        any was measured again.

        Only in a run that measures at all: from the store alone, nothing is measured anew.
        """
        if budget.spent or not measuring.counts.measured:
            return False
        problem = self.problem()
        searched = reuse(problem, None)
        answer = solve(problem, previous=searched, with_bounds=False)
        if answer.infeasible is not None or answer.cost_us is None:
            return False
        unsure = self.doubt(problem, answer, searched)
        wanted = {str(name) for name, gain in unsure.settle[:SETTLED] if gain > 0}
        if not wanted or unsure.loss_us < SETTLED_BELOW * answer.cost_us:
            return False
        groups = group_candidates([r for r in self.records if r.id in wanted])
        deadline = min(budget.deadline, time.monotonic() + SETTLING_S)
        before = {r.key: r.cost for group in groups for r in group.candidates}
        costs = measuring.again(groups, deadline)
        twice = [two for key, old in before.items() if (two := sittings(old, costs.get(key, old)))]
        if len(twice) >= ENOUGH_TWICE:
            self.drift = drift_between(twice)
        self.records = with_costs(self.records, costs)
        return True

    def problem(self) -> Problem:
        return make_problem(self.graph, self.records, self.pins, self.constants, self.settings)

    def doubt(self, problem: Problem, answer: Answer, search: Search) -> Doubt:
        """How sure the cover is, by resampling the repeats."""
        return doubt(
            problem,
            answer,
            repeats={r.id: r.cost.repeats_us for r in self.records if r.cost.repeats_us},
            same={r.id: r.key for r in self.records if r.key},
            draws=DRAWS,
            time_limit_s=DOUBT_S,
            search=search,
            drift=self.drift,
        )

    def search(self, menu: Menu) -> tuple[Answer, list[Placement]]:
        """The best covers, best first."""
        with self.stages.stage("search") as report:
            problem = self.problem()
            searched = reuse(problem, None)
            answer = solve(problem, previous=searched)
            if answer.infeasible is None and answer.cost_us is None:
                raise InfeasibleError(f"no placement was found: {UNDECIDED}", {})
            if answer.infeasible is not None:
                self.explain_missing_costs(menu, answer)
            by_id = {record.id: record for record in self.records}
            placements = best_placements(self.graph, by_id, problem, searched, self.settings)
            right = self.doubt(problem, answer, searched).right
            placements[0] = msgspec.structs.replace(
                placements[0],
                partitions=tuple(
                    msgspec.structs.replace(part, right=right.get(part.candidate))
                    for part in placements[0].partitions
                ),
            )
            report.detail = f"{len(placements[0].partitions)} partitions"
        return answer, placements

    def explain_missing_costs(self, menu: Menu, answer: Answer) -> None:
        """A cover exists, but not one of measured candidates: say which nodes lack a cost."""
        details = infeasible_details(self.graph, self.pins, answer, menu.not_offered)
        nodes = answer.infeasible.nodes if answer.infeasible else ()
        reasons = [
            f"{record.instance.id}: {record.cost.reason}"
            for record in self.records
            if record.cost.state == "invalid" and set(nodes) & set(record.nodes)
        ]
        if any(record.cost.state == "unknown" for record in self.records) and not reasons:
            raise InfeasibleError(
                "the budget was spent before every node had a measured candidate: "
                "give a larger --budget; what was measured is kept",
                details,
            )
        more = f" ({'; '.join(reasons[:3])})" if reasons else ""
        raise InfeasibleError(f"no placement exists: {details['reason']}{more}", details)

    def keep_tolerance(
        self, placements: list[Placement], sample: Sample, measuring: Measuring
    ) -> list[Placement]:
        """The fastest covers that keep the tolerance end to end, in place of the fastest ones."""

        def widened() -> tuple[Problem, list[CandidateRecord]]:
            # Nothing was left out for being slower than what turned out to be inadmissible.
            self.records = measuring.rest(self.records, self.budget.deadline)
            return self.problem(), self.records

        with self.stages.stage("accuracy") as report:
            self.kept = covers_within(
                self.model, self.problem(), self.records, (sample, *self.more), self.tolerance,
                self.workspace.folder, report, widened,
            )  # fmt: skip
        best = [{part.candidate for part in p.partitions} for p in placements]
        by_id = {record.id: record for record in self.records}
        found = []
        for tried in chosen_covers(self.kept):
            names = [str(name) for name in tried.cover]
            if set(names) in best:
                found.append(placements[best.index(set(names))])
            else:
                percentile = self.settings.percentile
                found.append(make_placement(self.graph, by_id, names, tried.cost_us, percentile))
        if not found:
            self.warn(f"no cover was found that keeps the tolerance of {self.tolerance:g}")
        return found or placements

    def refine(
        self,
        menu: Menu,
        placements: list[Placement],
        inputs: dict[str, np.ndarray],
        truth: dict[str, np.ndarray],
    ) -> list[Placement]:
        """The covers with what refinement found in front, where it measured faster whole."""
        with self.stages.stage("refine") as report:
            problem = self.problem()
            by_id = {record.id: record for record in self.records}
            folder = Path(tempfile.mkdtemp(prefix="refine-", dir=self.workspace.folder))
            whole = EndToEnd(
                self.model,
                lambda cover: tuple(part_of(by_id[str(name)]) for name in cover),
                inputs, truth, self.tolerance, folder, self.more,
            )  # fmt: skip
            tried: list[Trial] = []

            def on_trial(trial: Trial) -> None:
                tried.append(trial)
                took = f"{trial.us / 1000:.3g} ms" if trial.us else trial.reason or ""
                report.progress(len(tried), len(tried), f"trial {len(tried)}: {took}")

            start = [[part.candidate for part in p.partitions] for p in placements]
            found = refine_covers(
                problem, start, whole, self.settings.refine_budget_s, on_trial, None
            )
            shutil.rmtree(folder, ignore_errors=True)
            cancel.check()
            report.detail = f"{len(found.trials)} covers measured whole"
            if found.us is not None and found.start_us:
                gain = (1 - found.us / found.start_us) * 100
                report.detail += f", best {gain:.1f} % faster than the start"
        best = {str(name) for name in found.cover}
        known = [p for p in placements if {part.candidate for part in p.partitions} == best]
        if known:
            return known + [p for p in placements if p is not known[0]]
        estimate = check(problem, found.cover)
        refined = make_placement(
            self.graph, by_id, [str(name) for name in found.cover],
            estimate if isinstance(estimate, float) else None, self.settings.percentile,
        )  # fmt: skip
        return [with_conversions(refined, problem), *placements]

    def confirm(
        self,
        menu: Menu,
        placements: Sequence[Placement],
        inputs: dict[str, np.ndarray],
        truth: dict[str, np.ndarray],
    ) -> Confirmation:
        with self.stages.stage("build") as report:
            covers = [
                Rival(
                    name=COLLAGE if place == 0 else f"{COLLAGE} {place + 1}",
                    kind="collage",
                    cover=cover_of(placement, menu),
                    order=place,
                )
                for place, placement in enumerate(placements)
            ]
            calls = call_graph(self.model.graph)
            others = [
                self.judged(rival) for rival in baselines(calls, menu, self.settings, len(covers))
            ]
            report.detail = f"{len(covers)} covers, {len(others)} baselines"
        with self.stages.stage("confirm") as report:
            folder = Path(tempfile.mkdtemp(prefix="confirm-", dir=self.workspace.folder))
            confirmation = confirm(
                self.model,
                [*covers, *others],
                inputs=inputs,
                truth=truth,
                tolerance=self.tolerance,
                folder=folder,
                cancel=cancel.EVENT,
                on_progress=report.progress,
                more=self.more,
            )
            report.detail = f"{confirmation.named} is fastest"
        return confirmation

    def judged(self, rival: Rival) -> Rival:
        """A baseline with whether it may win: it breaks no pin and no deployment constraint."""
        why = barred(rival.cover, constraints_of(self.settings, self.constants))
        broken = any(breaks_pin(rival.cover, pin) for pin in self.pins)
        return replace(rival, eligible=why is None and not broken, barred=why)

    def export(
        self,
        menu: Menu,
        confirmation: Confirmation,
        chosen: Placement,
        inputs: dict[str, np.ndarray],
        truth: dict[str, np.ndarray],
    ) -> str | None:
        if self.out is None:
            return None
        winner = confirmation.winner
        assert winner.folder is not None
        with self.stages.stage("export") as report:
            contents = ArtifactContents(
                inputs=inputs,
                outputs=truth,
                tolerance=self.tolerance,
                placement=chosen,
                target=self.settings.target,
                versions={s.name: s.version or "" for s in menu.states if s.available},
            )
            write_artifact(self.model, winner.folder, Path(self.out), contents)
            report.detail = self.out
        return self.out
