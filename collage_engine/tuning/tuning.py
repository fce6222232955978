"""Tuning within a budget of its own: better kernels for candidates that could matter.

What could still change the answer is tuned, the most promising first, and becomes candidates of a
tuned instance beside the untuned ones; then the search is asked again what could change the answer.
Tuning ends when its budget is spent or nothing is left that could. What earlier runs found is used
without a budget.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from collage_engine.candidates.menu import Menu, threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.budget import Budget
from collage_engine.control.progress import StageReport
from collage_engine.control.run_control import RunControl
from collage_engine.machine.worker import Worker, WorkerError
from collage_engine.partition.candidate_source import CandidateSource
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import UNKNOWN
from collage_engine.records.cost_table import CostTable
from collage_engine.records.counted import counted
from collage_engine.records.errors import CollageError, ModelError
from collage_engine.records.faults import FAULTS
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.tuning import TuneCounts, TuneTask
from collage_engine.store.store import Store
from collage_engine.store.tuning_records import TuningRecords
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.timing.child import measuring_environment
from collage_engine.toolchains.capabilities import Tunes, tuner_of
from collage_engine.toolchains.registry import get
from collage_engine.tuning.choice import (
    ProblemOf,
    Prospect,
    can_be_tuned,
    choices_of,
    disjoint,
    is_plain,
    prospects,
    ranked,
    tuned_instance,
)
from collage_engine.tuning.job import JOB, ListTasks
from collage_engine.tuning.workload_searches import SILENCE_S, WorkloadSearches

TURN_S = 2.0, 15.0
"""Seconds of the shortest and the longest turn of one workload, which may get several; chosen."""
BESIDE_S, BESIDE_SHARE = 20.0, 0.2
"""Seconds, or this share of the budget where that is less, for finding out what candidates consist
of, and as much for measuring what was found; the seconds also hold where there is no budget, but
earlier runs left records; chosen."""


def tunable(menu: Menu) -> list[ToolchainInstance]:
    """Return the instances whose kernels can be tuned."""
    return [
        source.instance
        for source in menu.sources
        if is_plain(source.instance) and isinstance(get(source.instance.toolchain), Tunes)
    ]


def worth_tuning(store: Store, menu: Menu, settings: RunSettings) -> bool:
    """Tell whether there is a toolchain to tune, and a budget or records of earlier runs."""
    names = dict.fromkeys(instance.toolchain for instance in tunable(menu))
    if not names:
        return False
    return settings.tune_budget_s > 0 or any(
        TuningRecords(store, menu.keys, name).any() for name in names
    )


def summary(counts: TuneCounts) -> str:
    """Return the outcome of tuning in a line."""
    return (
        f"{counted(counts.tuned, 'kernel')} tuned, {counts.from_store} from the store, "
        f"{counts.improved} of {counts.workloads} improved, "
        f"{counted(counts.candidates, 'candidate')} added"
    )


def sum_of(one: TuneCounts, other: TuneCounts) -> TuneCounts:
    """Return the counts of two instances' tuning together."""
    sums = {f: getattr(one, f) + getattr(other, f) for f in TuneCounts.__struct_fields__}
    return TuneCounts(**sums)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result says what tuning made of a run's candidates."""

    menu: Menu
    """With the tuned instance, where it has candidates."""
    candidates: tuple[Candidate, ...]
    costs: CostTable
    counts: TuneCounts


class Tuning:
    """The tuning of one toolchain instance in one run; closing it ends the child."""

    def __init__(
        self,
        open_model: OpenModel,
        menu: Menu,
        settings: RunSettings,
        measuring: Measuring,
        problem_of: ProblemOf,
        control: RunControl,
        report: StageReport,
        instance: ToolchainInstance,
        job: str = JOB,
    ) -> None:
        """Start nothing yet; the child begins with the first request.

        Args:
            open_model: The model.
            menu: What there is to choose from.
            settings: The run's settings, with the budget of this instance.
            measuring: Measures tuned candidates.
            problem_of: Makes the search problem of some candidates.
            control: The run's cancel flag and warnings.
            report: Where progress is reported.
            instance: The untuned instance.
            job: What the child does, as a worker's target.
        """
        self.open_model = open_model
        self.menu = menu
        self.settings = settings
        self.measuring = measuring
        self.problem_of = problem_of
        self.control = control
        self.report = report
        self.instance = instance
        self.toolchain = instance.toolchain
        self.counts = TuneCounts()
        self._records = TuningRecords(open_model.store, menu.keys, self.toolchain)
        self._worker = Worker(
            job,
            env=measuring_environment([self.toolchain], threads_of(settings)),
            name="collage-tune",
        )
        self._tasks: dict[str, list[TuneTask]] = {}
        """By measurement key of the untuned candidate."""
        self._searches = WorkloadSearches(self._worker, self._records, self.toolchain, control)
        self._known = self._searches.known
        self._sources: list[CandidateSource] = list(menu.sources)
        self._untuned: tuple[Candidate, ...] = ()
        self._unlisted = 0
        """Candidates whose listing ended the child."""

    def close(self) -> None:
        """End the child."""
        self._worker.close()

    def run(self, candidates: Sequence[Candidate], costs: CostTable) -> Tuned:
        """Tune until the budget is spent or nothing is left that could change the answer.

        Args:
            candidates: All candidates.
            costs: Their costs.

        Returns:
            The candidates and costs with tuned candidates beside the untuned ones.

        Raises:
            Cancelled: The user stopped the run.
        """
        budget = Budget(self.settings.tune_budget_s)
        candidates = self._untuned = tuple(candidates)
        reserve = min(BESIDE_S, BESIDE_SHARE * budget.seconds)
        self._list(self._prospects(candidates, costs), budget)
        while True:
            promising = self._prospects(candidates, costs)
            turns = self._unfinished(promising) if budget.left > reserve else []
            total = sum(score for _, score in turns)
            taken = 0
            for task, score in turns:
                if budget.left <= reserve:
                    break
                taken += self._turn(task, score, total, budget)
            before = {c.id: c.key for c in candidates}
            beyond = time.monotonic() + min(BESIDE_S, self.settings.budget_s)
            candidates, costs = self._add_tuned(
                candidates, costs, promising, max(budget.deadline, beyond)
            )
            changed = any(before.get(c.id) != c.key for c in candidates)
            if budget.left <= reserve or not (taken or changed):
                break
            self._list(self._prospects(candidates, costs), budget)
        improved = sum(bool(r.choice) for r in self._known.values())
        self.counts = msgspec.structs.replace(
            self.counts,
            workloads=len(self._workloads()),
            improved=improved,
            from_store=sum(
                r.complete for w, r in self._known.items() if w not in self._searches.done
            ),
            seconds=time.monotonic() - budget.started,
        )
        return Tuned(
            menu=replace(self.menu, sources=tuple(self._sources)),
            candidates=candidates,
            costs=costs,
            counts=self.counts,
        )

    # -- what is worth tuning ------------------------------------------------------------

    def _prospects(self, candidates: Sequence[Candidate], costs: CostTable) -> list[Prospect]:
        """Return the candidates whose tuning could change the answer, the largest gain first."""
        mine = [
            c
            for c in candidates
            if c.instance.id == self.instance.id and can_be_tuned(c, costs, (self.toolchain,))
        ]
        self._learn(c.key for c in mine)
        # Of an unlisted candidate nobody knows yet whether there is anything to tune.
        tunable_ids = {c.id for c in mine if self._tasks.get(c.key) != []}
        return prospects(candidates, costs, tunable_ids, self.problem_of)

    def _learn(self, keys: Iterable[str]) -> None:
        """Take over the tasks and records that the store has."""
        new = [key for key in dict.fromkeys(keys) if key not in self._tasks]
        self._tasks.update(self._records.tasks(new))
        wanted = [w for w in self._workloads() if w not in self._known]
        self._known.update(self._records.records(wanted))

    def _workloads(self) -> list[str]:
        """Return the workloads of all candidates whose tasks are known, each once."""
        return list(dict.fromkeys(t.workload for tasks in self._tasks.values() for t in tasks))

    def _unfinished(self, promising: Sequence[Prospect]) -> list[tuple[TuneTask, float]]:
        """Return unfinished workloads, each with the microseconds that it takes.

        Those of the best placement in sight come before those of all that could matter.
        """
        best = ranked(disjoint(promising), self._tasks, self._known)
        return best or ranked(promising, self._tasks, self._known)

    def _list(self, promising: Sequence[Prospect], budget: Budget) -> None:
        """Have the child list the kernels of candidates whose tasks are not known yet.

        Args:
            promising: The candidates, the most promising first.
            budget: The budget of the tuning, of which this takes a share.
        """
        unknown = [p.candidate for p in promising if p.candidate.key not in self._tasks]
        if not unknown or (budget.seconds <= 0 and not self._records.any()):
            return
        share = BESIDE_SHARE * budget.seconds if budget.seconds > 0 else BESIDE_S
        deadline = time.monotonic() + min(BESIDE_S, share)
        for place, candidate in enumerate(unknown):
            key = candidate.key
            if key in self._tasks:
                continue
            if time.monotonic() >= deadline or self._unlisted >= FAULTS:
                return
            self.report.progress(place, len(unknown), f"kernels of {candidate.label}")
            tasks = self._ask_tasks(candidate)
            self._tasks[key] = tasks or []
            if tasks is not None:
                self._records.put_tasks(key, tasks)
        self._learn(())

    def _ask_tasks(self, candidate: Candidate) -> list[TuneTask] | None:
        """Return what a candidate has to tune; None when the child could not say."""
        try:
            tasks: list[TuneTask] = self._worker.call(
                ListTasks(
                    self.open_model.path,
                    self.open_model.shapes,
                    candidate.nodes,
                    candidate.instance,
                    candidate.takes,
                    candidate.gives,
                    self.open_model.model.record.sha256,
                ),
                timeout_s=SILENCE_S * 2,
                cancel=self.control.cancelled,
            )
            return tasks
        except CollageError as error:
            self.control.check()
            if isinstance(error, ModelError):
                raise
            if not isinstance(error, WorkerError):
                return []
            self._unlisted += 1
            given_up = ": none is tuned any more" if self._unlisted >= FAULTS else ""
            self.control.warn(
                f"the kernels of {self.toolchain} in {candidate.label} could not be listed: "
                f"{error}{given_up}"
            )
            return None

    # -- one turn ------------------------------------------------------------------------

    def _turn(self, task: TuneTask, score: float, total: float, budget: Budget) -> bool:
        """Search for a better kernel of a workload for a while.

        Args:
            task: The workload.
            score: The microseconds that it takes.
            total: The same of all workloads; the share of the time follows from both.
            budget: The budget of the tuning.

        Returns:
            Whether there was time for it.
        """
        shortest, longest = TURN_S
        if budget.left < shortest:
            return False
        seconds = max(shortest, min(longest, budget.left * score / total))
        done = len(self._searches.done)
        self.report.progress(done, done + 1, task.workload)
        self._searches.take(task, self.instance, min(seconds, budget.left))
        self.counts = msgspec.structs.replace(
            self.counts, tuned=len(self._searches.done), tried=self._searches.tried
        )
        return True

    # -- tuned candidates ----------------------------------------------------------------

    def _add_tuned(
        self,
        candidates: tuple[Candidate, ...],
        costs: CostTable,
        promising: Sequence[Prospect],
        deadline: float,
    ) -> tuple[tuple[Candidate, ...], CostTable]:
        """Add tuned candidates beside the untuned ones, and measure them; older ones are replaced.

        Args:
            candidates: All candidates.
            costs: Their costs.
            promising: The untuned candidates that tuned ones are made of.
            deadline: When measuring ends, on the monotonic clock.

        Returns:
            The candidates and their costs.
        """
        table = choices_of(self._known)
        if not table:
            return candidates, costs
        digest = tuner_of(get(self.toolchain)).keep(table)
        instance = tuned_instance(self.instance, digest)
        have = {c.id: c for c in candidates}
        new: list[Candidate] = []
        for plain in dict.fromkeys(p.candidate.id for p in promising):
            tuned = self._tuned(have[plain], instance, table)
            if tuned is None:
                continue
            known = have.get(tuned.id)
            if known is None or known.key != tuned.key:
                new.append(tuned)
        current = tuple(
            msgspec.structs.replace(c, instance=instance) if c.instance.id == instance.id else c
            for c in candidates
        )
        self._sources = [o for o in self._sources if o.instance.id != instance.id]
        if new or any(c.instance.id == instance.id for c in current):
            base = next(o for o in self.menu.sources if o.instance.id == self.instance.id)
            self._sources.append(replace(base, instance=instance))
        if not new:
            return current, costs
        costs = costs.with_isolated({c.id: UNKNOWN for c in new})
        costs = self.open_model.with_stored_costs(new, costs)
        self.report.progress(0, len(new), "measuring tuned candidates")
        costs = self.measuring.add(new, costs, deadline)
        self.counts = msgspec.structs.replace(
            self.counts, candidates=self.counts.candidates + len(new)
        )
        fresh = {c.id for c in new}
        return (*(c for c in current if c.id not in fresh), *new), costs

    def _tuned(
        self, plain: Candidate, instance: ToolchainInstance, table: Mapping[str, dict[str, Any]]
    ) -> Candidate | None:
        """Return the candidate with the choices that concern it; None when there are none."""
        mine = {
            t.workload: table[t.workload]
            for t in self._tasks.get(plain.key, ())
            if t.workload in table
        }
        if not mine:
            return None
        text = json.dumps(mine, sort_keys=True, separators=(",", ":"))
        key = hashlib.sha256(f"{plain.key}\0tuned\0{text}".encode()).hexdigest()
        return msgspec.structs.replace(
            plain,
            id=instance.id + plain.id.removeprefix(plain.instance.id),
            instance=instance,
            key=key,
            rule="tuned",
        )
