"""The tuning stage: within a budget of its own, better kernels for candidates that could matter.

What could still change the answer is tuned, the most promising first, and offered as instances of
their own beside the untuned ones; then the search looks again. It ends when the budget is spent or
nothing is left that could change the answer. What earlier runs found is offered without a budget.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from collage_engine.candidates.open_model import Menu, Workspace, threads_of
from collage_engine.control.budget import Budget
from collage_engine.control.progress import StageReport
from collage_engine.control.run_control import RunControl
from collage_engine.machine.worker import Worker, WorkerError
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import UNKNOWN
from collage_engine.records.counted import counted
from collage_engine.records.errors import CollageError, ModelError
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.tuning import TuneCounts, TuneTask
from collage_engine.search.problem import Problem
from collage_engine.store.tuning_records import TuningRecords
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.timing.child import measuring_environment
from collage_engine.toolchains.registry import get
from collage_engine.tuning.choice import (
    Hope,
    apart,
    can_be_tuned,
    choices_of,
    hopes,
    is_plain,
    optimistic_us,
    ranked,
    tuned_instance,
)
from collage_engine.tuning.job import JOB, ListTasks, Missing
from collage_engine.tuning.turns import SILENCE_S, Turns

TUNABLE = "tvm"
"""The toolchain that has a tuner."""
TURN_S = 2.0, 15.0
"""Shortest and longest turn of one workload; it may get several."""
TRACE_S = 90.0, 180.0
"""The same for MetaSchedule, which takes half a minute to begin."""
LIST_SHARE = 0.2
"""Of the budget, at most, for finding out what candidates consist of."""
LISTED_FREE_S = 20.0
"""The same where earlier runs left records but no budget is given."""
MEASURING_S, MEASURING_SHARE = 20.0, 0.15
"""Left at the end of the budget for measuring what was found: the smaller of the two."""
BEYOND_S = 30.0
"""How far beyond it (or without one) tuned candidates may be measured, if ``--budget`` allows."""
OFFERED = 64
"""Tuned candidates measured in a round."""
ROUND = 12
"""Workloads tuned before what came of it is measured and searched."""
Problems = Callable[[list[Candidate]], Problem]


def tunable(menu: Menu) -> list[ToolchainInstance]:
    """The instances whose kernels can be tuned."""
    mine = (o.instance for o in menu.offers if o.instance.toolchain == TUNABLE)
    return [instance for instance in mine if is_plain(instance)]


def worth_tuning(workspace: Workspace, menu: Menu, settings: RunSettings) -> bool:
    """Whether there is a toolchain to tune, and a budget or records of earlier runs."""
    if not tunable(menu):
        return False
    return settings.tune_budget_s > 0 or TuningRecords(workspace.store, menu.keys, TUNABLE).any()


def told(counts: TuneCounts) -> str:
    """The stage in a line."""
    return (
        f"{counted(counts.tuned, 'kernel')} tuned, {counts.from_store} from the store, "
        f"{counts.improved} of {counts.workloads} improved, "
        f"{counted(counts.candidates, 'candidate')} offered"
    )


def together(one: TuneCounts, other: TuneCounts) -> TuneCounts:
    """Of two instances' tuning."""
    sums = {f: getattr(one, f) + getattr(other, f) for f in TuneCounts.__struct_fields__}
    return TuneCounts(**sums)


@dataclass
class Tuning:
    """One run's tuning of one instance. Close it to end the child."""

    workspace: Workspace
    menu: Menu
    settings: RunSettings
    measuring: Measuring
    report: StageReport
    problem_of: Problems
    control: RunControl
    instance: ToolchainInstance | None = None
    """None: the first that can be tuned."""
    job: str = JOB
    counts: TuneCounts = field(default_factory=TuneCounts)

    def __post_init__(self) -> None:
        self._base = self.instance or tunable(self.menu)[0]
        self.toolchain = self._base.toolchain
        self._records = TuningRecords(self.workspace.store, self.menu.keys, self.toolchain)
        self._worker = Worker(
            self.job,
            env=measuring_environment([self.toolchain], threads_of(self.settings)),
            name="collage-tune",
        )
        self._tasks: dict[str, list[TuneTask]] = {}
        """By measurement key of the untuned candidate."""
        self._turns = Turns(self._worker, self._records, self.toolchain, self.control)
        self._known = self._turns.known
        self._offers = list(self.menu.offers)
        self._latest: list[Candidate] = []
        self._said = False

    def close(self) -> None:
        self._worker.close()

    def run(self, records: Sequence[Candidate]) -> tuple[Menu, list[Candidate]]:
        """The menu with the tuned instance, where it has candidates, and all records."""
        budget = Budget(self.settings.tune_budget_s)
        found = self._latest = list(records)
        reserve = min(MEASURING_S, MEASURING_SHARE * budget.seconds)
        promising = self._promising(found)
        self._list(promising, budget)
        while True:
            promising = self._promising(found)
            worth = self._worth(promising)
            turns = worth if budget.left > reserve else []
            total = sum(score for _, score in turns)
            taken = 0
            for task, score in turns[:ROUND]:
                if budget.left <= reserve:
                    break
                taken += self._turn(task, score, total, budget)
            before = {r.id: r.key for r in found}
            beyond = time.monotonic() + min(BEYOND_S, self.settings.budget_s)
            found = self._offer(found, promising, max(budget.deadline, beyond))
            changed = any(before.get(r.id) != r.key for r in found)
            if budget.left <= reserve or not (taken or changed):
                break
            self._list(self._promising(found), budget)
        improved = sum(bool(r.choice) for r in self._known.values())
        self.counts = msgspec.structs.replace(
            self.counts,
            workloads=len(self._workloads()),
            improved=improved,
            from_store=sum(r.complete for w, r in self._known.items() if w not in self._turns.done),
            seconds=time.monotonic() - budget.started,
        )
        return replace(self.menu, offers=self._offers), found

    # -- what ----------------------------------------------------------------------------

    def _promising(self, records: Sequence[Candidate]) -> list[Hope]:
        optimistic: dict[str, float] = {}
        mine = [
            r
            for r in records
            if can_be_tuned(r, (self.toolchain,)) and r.instance.id == self._base.id
        ]
        self._learn(r.key for r in mine)
        for record in mine:
            us = optimistic_us(record, self._tasks.get(record.key), self._known)
            if us is not None:
                optimistic[record.id] = us
        return hopes(records, optimistic, self.problem_of)

    def _learn(self, keys: Any) -> None:
        """Tasks and records that the store has."""
        new = [key for key in dict.fromkeys(keys) if key not in self._tasks]
        self._tasks.update(self._records.tasks(new))
        wanted = [w for w in self._workloads() if w not in self._known]
        self._known.update(self._records.records(wanted))

    def _workloads(self) -> list[str]:
        return list(dict.fromkeys(t.workload for tasks in self._tasks.values() for t in tasks))

    def _worth(self, promising: Sequence[Hope]) -> list[tuple[TuneTask, float]]:
        """Unfinished workloads: of the best placement in sight, then of all that could matter."""
        first = ranked(apart(promising), self._tasks, self._known)
        names = {task.workload for task, _ in first}
        rest = ranked(promising, self._tasks, self._known)
        return first + [item for item in rest if item[0].workload not in names]

    def _list(self, promising: Sequence[Hope], budget: Budget) -> None:
        """Have the child say what these candidates consist of."""
        unknown = [h for h in promising if h.candidate.key not in self._tasks]
        if not unknown or (budget.seconds <= 0 and not self._records.any()):
            return
        seconds = max(LIST_SHARE * budget.seconds, 0.0) if budget.seconds > 0 else LISTED_FREE_S
        deadline = time.monotonic() + seconds
        for place, hope in enumerate(unknown):
            key = hope.candidate.key
            if key in self._tasks:
                continue
            if time.monotonic() >= deadline:
                return
            self.report.progress(place, len(unknown), f"kernels of {hope.candidate.label}")
            tasks = self._ask_tasks(hope.candidate)
            self._tasks[key] = tasks or []
            if tasks is not None:
                self._records.put_tasks(key, tasks)
        self._learn(())

    def _ask_tasks(self, candidate: Candidate) -> list[TuneTask] | None:
        """What a candidate has to tune; None when the child could not say."""
        try:
            tasks: list[TuneTask] = self._worker.call(
                ListTasks(
                    self.workspace.path,
                    self.workspace.shapes,
                    candidate.nodes,
                    candidate.instance,
                    candidate.takes,
                    candidate.gives,
                    self.workspace.model.record.sha256,
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
            self.control.warn(f"the kernels of {candidate.label} could not be listed: {error}")
            return None

    def _say_what_is_missing(self) -> None:
        self._said = True
        try:
            missing = self._worker.call(
                Missing(self.toolchain), timeout_s=SILENCE_S, cancel=self.control.cancelled
            )
        except WorkerError as error:
            self.control.check()
            missing = str(error)
        if missing:
            self.control.warn(missing)

    # -- one turn ------------------------------------------------------------------------

    def _turn(self, task: TuneTask, score: float, total: float, budget: Budget) -> bool:
        """Search for a better kernel for a while; whether there was time for it."""
        shortest, longest = TRACE_S if task.kind == "trace" else TURN_S
        described = self._describe(task) if budget.left >= shortest else None
        if described is None:
            return False
        if task.kind == "trace" and not self._said:
            self._say_what_is_missing()
        seconds = max(shortest, min(longest, budget.left * score / total))
        done = len(self._turns.done)
        self.report.progress(done, done + 1, task.workload)
        self._turns.take(described, self._base, min(seconds, budget.left))
        self.counts = msgspec.structs.replace(
            self.counts, tuned=len(self._turns.done), tried=self._turns.tried
        )
        return True

    def _describe(self, task: TuneTask) -> TuneTask | None:
        """The task with what is needed to do it: large descriptions are not kept."""
        if task.description:
            return task
        for record in self._latest:
            tasks = self._tasks.get(record.key, [])
            if any(t.workload == task.workload for t in tasks):
                fresh = self._ask_tasks(record) or []
                return next((t for t in fresh if t.workload == task.workload), None)
        return None

    # -- offering ------------------------------------------------------------------------

    def _offer(
        self, records: list[Candidate], promising: Sequence[Hope], deadline: float
    ) -> list[Candidate]:
        """Tuned candidates beside their untuned selves, measured; older ones are replaced."""
        everything = [task for tasks in self._tasks.values() for task in tasks]
        table = choices_of(everything, self._known)
        if not table:
            return records
        tuner = get(self.toolchain).tuner()
        assert tuner is not None
        digest = tuner.keep(table)
        instance = tuned_instance(self._base, digest)
        have = {r.id: r for r in records}
        offered: list[Candidate] = []
        keys: set[str] = set()
        wanted = [h.candidate for h in promising]
        for plain in dict.fromkeys(r.id for r in wanted):
            record = self._tuned(have[plain], instance, table)
            if record is None or (record.key not in keys and len(keys) >= OFFERED):
                continue
            keys.add(record.key)
            known = have.get(record.id)
            if known is None or known.key != record.key:
                offered.append(record)
        self._offers = [o for o in self._offers if o.instance.id != instance.id]
        base = next(o for o in self.menu.offers if o.instance.id == self._base.id)
        current = [
            msgspec.structs.replace(r, instance=instance) if r.instance.id == instance.id else r
            for r in records
        ]
        if offered or any(r.instance.id == instance.id for r in current):
            self._offers.append(replace(base, instance=instance))
        if not offered:
            return current
        stored = self.workspace.with_stored_costs(offered)
        self.report.progress(0, len(stored), "measuring tuned candidates")
        measured = self.measuring.add(stored, deadline)
        self.counts = msgspec.structs.replace(
            self.counts, candidates=self.counts.candidates + len(offered)
        )
        fresh = {r.id for r in measured}
        return [r for r in current if r.id not in fresh] + list(measured)

    def _tuned(
        self, plain: Candidate, instance: Any, table: Mapping[str, dict[str, Any]]
    ) -> Candidate | None:
        """The candidate with the choices that concern it; None when there are none."""
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
            cost=UNKNOWN,
            rule="tuned",
        )
