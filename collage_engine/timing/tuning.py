"""Tuning within a budget of its own: better kernels for candidates that could matter.

What could still change the answer is tuned, the most promising first, and becomes candidates of a
tuned instance beside the untuned ones; then the search is asked again what could change the answer.
It could where a candidate is in the best cover if each that can be tuned took as little as tuning
may make of it. Tuning ends when its budget is spent or nothing is left that could. What earlier
runs found is used without a budget.

The machine's own tables grow with every model that is tuned; an artifact that is exported again
must hold the kernels that were measured, also on another machine or with an emptied cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from collage_engine.candidates.catalog import CandidateCatalog, threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.kernels.choices import TUNED, read_table, write_table
from collage_engine.machine.faults import FAULTS
from collage_engine.machine.run_control import RunControl, StageReport
from collage_engine.machine.worker import Worker, WorkerError
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.candidate import UNKNOWN, Candidate, CostTable
from collage_engine.records.placement import Placement, Run
from collage_engine.records.precision import FLOAT32
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance, TuneCounts, TuneRecord, TuneTask
from collage_engine.search.api import solve
from collage_engine.store.store import Store, TuningRecords
from collage_engine.support.errors import CollageError, ToolchainError
from collage_engine.support.text import counted
from collage_engine.support.time_limits import ANSWER_S
from collage_engine.timing.child import measuring_environment
from collage_engine.timing.measurer import Measuring, group_candidates
from collage_engine.timing.tuning_job import JOB, ListTasks, Tune
from collage_engine.toolchains.capabilities import Tunes
from collage_engine.toolchains.registry import get

SHORTEST_S, LONGEST_S = 2.0, 15.0
"""Seconds of the shortest and the longest turn of one workload, which may get several; chosen."""
BESIDE_S, BESIDE_SHARE = 20.0, 0.2
"""Seconds, or this share of the budget where that is less, for finding out what candidates consist
of, and as much for measuring what was found; the seconds also hold where there is no budget, but
earlier runs left records; chosen."""


def tunable(
    store: Store, catalog: CandidateCatalog, settings: RunSettings
) -> ToolchainInstance | None:
    """Return the instance whose kernels are tuned, or taken from what earlier runs found.

    None where no toolchain tunes, or where there is neither a budget nor anything found.
    """
    for source in catalog.sources:
        name = source.instance.toolchain
        if is_plain(source.instance) and isinstance(get(name), Tunes):
            records = TuningRecords(store, catalog.keys, name)
            return source.instance if settings.tune_budget_s > 0 or records.any() else None
    return None


def summary(counts: TuneCounts) -> str:
    """Return the outcome of tuning in a line."""
    return (
        f"{counted(counts.tuned, 'kernel')} tuned, {counts.from_store} from the store, "
        f"{counts.improved} of {counts.workloads} improved, "
        f"{counted(counts.candidates, 'candidate')} added"
    )


@dataclass(eq=False)
class Tuning:
    """The tuning of one toolchain instance in one run."""

    open_model: OpenModel
    catalog: CandidateCatalog
    """With the tuned instance, once it has candidates."""
    inputs: SearchInputs
    """The candidates with their costs, tuned ones beside the untuned ones."""
    measuring: Measuring
    """Measures tuned candidates."""
    control: RunControl
    report: StageReport
    instance: ToolchainInstance
    """The untuned instance."""
    budget_s: float
    """Seconds for it."""
    job: str = JOB
    """What the child does, as a worker's target."""

    def __post_init__(self) -> None:
        self.toolchain = self.instance.toolchain
        self.counts = TuneCounts()
        self._records = TuningRecords(self.open_model.store, self.catalog.keys, self.toolchain)
        self._tasks: dict[str, list[TuneTask]] = {}
        """By measurement key of the untuned candidate."""
        self._known: dict[str, TuneRecord] = {}
        """By workload."""
        self._searched: dict[str, int] = {}
        """How many variants of each workload that this run searched were compared before."""
        self._added = 0
        """Candidates that were added."""
        self._ended = 0
        """How often a request ended the child, or had no answer in time."""

    def run(self) -> None:
        """Tune until the budget is spent or nothing is left that could change the answer.

        Raises:
            Cancelled: The user stopped the run.
        """
        env = measuring_environment([self.toolchain], threads_of(self.inputs.settings))
        with Worker(self.job, env=env, name="collage-tune") as self._worker:
            self._run()

    def _run(self) -> None:
        began, seconds = time.monotonic(), self.budget_s
        reserve = min(BESIDE_S, BESIDE_SHARE * seconds)
        ends = began + max(seconds, min(BESIDE_S, self.inputs.settings.budget_s))
        while True:
            chosen = self._promising()
            listed = self._list(chosen)
            turns = ranked(chosen, self.inputs.costs, self._tasks, self._known)
            total = sum(score for _, score in turns)
            taken = 0
            for task, score in turns:
                left = began + seconds - time.monotonic()
                if left <= max(reserve, SHORTEST_S) or self._ended >= FAULTS:
                    break
                self.report.progress(taken, len(turns), task.workload)
                share = max(SHORTEST_S, min(LONGEST_S, left * score / total))
                self._turn(task, min(share, left))
                taken += 1
            added = self._add_tuned(chosen, ends)
            spent = time.monotonic() >= ends - reserve
            if spent or not (listed or taken or added):
                break
        known, searched = self._known, self._searched
        self.counts = TuneCounts(
            workloads=len(self._workloads()),
            tuned=len(searched),
            from_store=sum(r.complete for w, r in known.items() if w not in searched),
            improved=sum(bool(r.choice) for r in known.values()),
            tried=sum(max(0, _compared(known[w]) - before) for w, before in searched.items()),
            candidates=self._added,
            seconds=time.monotonic() - began,
        )

    # -- what is worth tuning ------------------------------------------------------------

    def _promising(self) -> list[Candidate]:
        """Return the candidates whose tuning could change the answer, the longest ones first."""
        mine = [
            c
            for c in self.inputs.candidates
            if c.instance.id == self.instance.id and c.key and self.inputs.costs.cost(c.id).usable
        ]
        self._learn(c.key for c in mine)
        return promising(self.inputs, {c.id for c in mine if self._may_gain(c)})

    def _may_gain(self, candidate: Candidate) -> bool:
        """Tell whether a candidate has kernels to search, or better ones that it has not got yet.

        Args:
            candidate: The untuned candidate.
        """
        tasks = self._tasks.get(candidate.key)
        if tasks is None:  # nobody knows yet whether there is anything to tune
            return True
        records = [self._known.get(task.workload) for task in tasks]
        if any(record is None or not record.complete for record in records):
            return True
        has_choice = any(record is not None and record.choice for record in records)
        return has_choice and self._tuned_id(candidate) not in self.inputs.by_id

    def _tuned_id(self, plain: Candidate) -> str:
        """Return the id of a candidate's tuned one."""
        return tuned_instance(self.instance, "").id + plain.id.removeprefix(plain.instance.id)

    def _learn(self, keys: Iterable[str]) -> None:
        """Take over the tasks and records that the store has."""
        new = [key for key in dict.fromkeys(keys) if key not in self._tasks]
        self._tasks.update(self._records.tasks(new))
        wanted = [w for w in self._workloads() if w not in self._known]
        self._known.update(self._records.records(wanted))

    def _workloads(self) -> list[str]:
        """Return the workloads of all candidates whose tasks are known, each once."""
        return list(dict.fromkeys(t.workload for tasks in self._tasks.values() for t in tasks))

    def _list(self, chosen: Sequence[Candidate]) -> bool:
        """Have the child list the kernels of candidates whose tasks are not known yet.

        Args:
            chosen: The candidates, the most promising first.

        Returns:
            Whether there were such candidates, and time to ask.
        """
        unknown = [c for c in chosen if c.key not in self._tasks]
        seconds = self.budget_s
        if not unknown or (seconds <= 0 and not self._records.any()):
            return False
        share = BESIDE_SHARE * seconds if seconds > 0 else BESIDE_S
        deadline = time.monotonic() + min(BESIDE_S, share)
        for number, candidate in enumerate(unknown):
            if candidate.key in self._tasks:
                continue
            if time.monotonic() >= deadline or self._ended >= FAULTS:
                break
            self.report.progress(number, len(unknown), f"kernels of {candidate.label}")
            self._ask_tasks(candidate)
        self._learn(())
        return self._ended < FAULTS

    def _ask_tasks(self, candidate: Candidate) -> None:
        """Have the child list what a candidate has to tune: nothing where it cannot say."""
        request = ListTasks(self.open_model.model.record, candidate)
        tasks = self._tasks[candidate.key] = []
        try:
            with contextlib.suppress(ToolchainError):
                tasks += self._worker.call(request, 2 * ANSWER_S, self.control.cancelled)
            self._records.put_tasks(candidate.key, tasks)
        except WorkerError as error:
            self._ended += 1
            given_up = ": none is tuned any more" if self._ended >= FAULTS else ""
            self.control.warn(
                f"the kernels of {self.toolchain} in {candidate.label} could not be listed: "
                f"{error}{given_up}"
            )

    # -- one turn ------------------------------------------------------------------------

    def _turn(self, task: TuneTask, seconds: float) -> None:
        """Search for a better kernel of a workload for a while, and keep what is found.

        A search that ends the child, or is not done in time, keeps what it has found until then,
        and the workload is not searched again.

        Args:
            task: The workload.
            seconds: How long the search may take.

        Raises:
            Cancelled: The user stopped the run.
        """
        known = self._known.get(task.workload)
        self._searched.setdefault(task.workload, _compared(known))
        try:
            self._keep(
                self._worker.call(
                    Tune(task, self.instance, known, seconds),
                    timeout_s=seconds + 2 * ANSWER_S,
                    cancel=self.control.cancelled,
                    on_message=self._keep,
                )
            )
        except CollageError as error:
            self.control.check()
            self._ended += isinstance(error, WorkerError)
            blank = TuneRecord(workload=task.workload, toolchain=self.toolchain)
            record = self._known.get(task.workload, blank)
            self._keep(msgspec.structs.replace(record, complete=True, reason=str(error)))

    def _keep(self, record: TuneRecord) -> None:
        """Keep what is known of a workload, in the store too."""
        self._known[record.workload] = record
        self._records.put(record)

    # -- tuned candidates ----------------------------------------------------------------

    def _add_tuned(self, chosen: Sequence[Candidate], deadline: float) -> bool:
        """Add tuned candidates beside the untuned ones, and measure them; older ones are replaced.

        Args:
            chosen: The untuned candidates that tuned ones are made of.
            deadline: When measuring ends, on the monotonic clock.

        Returns:
            Whether there were any to add.
        """
        table = {w: dict(r.choice) for w, r in self._known.items() if r.choice}
        if not table:
            return False
        digest = write_table(table)
        instance, inputs = tuned_instance(self.instance, digest), self.inputs
        made = {c.id: c for plain in chosen if (c := self._tuned(plain, instance, table))}
        new = [
            c for c in made.values() if c.id not in inputs.by_id or inputs.by_id[c.id].key != c.key
        ]
        fresh = {c.id for c in new}
        current = [
            msgspec.structs.replace(c, instance=instance) if c.instance.id == instance.id else c
            for c in inputs.candidates
            if c.id not in fresh
        ] + new
        sources = [o for o in self.catalog.sources if o.instance.id != instance.id]
        if any(c.instance.id == instance.id for c in current):
            base = next(o for o in sources if o.instance.id == self.instance.id)
            sources.append(replace(base, instance=instance))
        self.catalog = replace(self.catalog, sources=tuple(sources))
        costs = inputs.costs
        if new:
            costs = costs.with_isolated(dict.fromkeys(fresh, UNKNOWN))
            costs = self.open_model.with_stored_costs(new, costs)
            self.report.progress(0, len(new), "measuring tuned candidates")
            self.measuring.begin(new, costs)
            groups = group_candidates(c for c in new if not costs.known(c.id))
            if groups:
                costs = costs.with_measured(new, self.measuring.measure_batch(groups, deadline))
            self._added += len(new)
        self.inputs = inputs.with_candidates(current, costs)
        return bool(new)

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
        name = self._tuned_id(plain)
        return msgspec.structs.replace(plain, id=name, instance=instance, key=key, rule="tuned")


def _compared(record: TuneRecord | None) -> int:
    """Return how many variants of a workload were compared."""
    return len(record.tried) + len(record.failed) if record else 0


def tables_of(placement: Placement | None) -> dict[str, dict[str, Any]]:
    """Return the tuned tables of a placement's partitions, by their hash."""
    parts = placement.partitions if placement is not None else ()
    digests = dict.fromkeys(part.tuning for part in parts if part.tuning)
    return {digest: dict(read_table(digest)) for digest in digests}


def put_tables_back(run: Run) -> None:
    """Write the run's tables where the toolchains look for them.

    Raises:
        ToolchainError: A table is not what its hash says: the session was changed.
    """
    for digest, table in run.tables.items():
        if write_table(table) != digest:
            raise ToolchainError(
                f"the tuned kernels {digest} of run {run.id} were changed in the session: "
                "place the model again"
            )


GAIN = 0.3
"""Share of a candidate's time that tuning saves at most: one that lies further behind others is not
tuned. Chosen: in ``RESULTS.md`` no tuned model gained more than a twentieth as a whole."""


def is_plain(instance: ToolchainInstance) -> bool:
    """Tell whether an instance computes in float32 on the processor, untuned, without a library."""
    return not (instance.config or instance.architecture) and instance.precision == FLOAT32


def tuned_instance(instance: ToolchainInstance, table: str) -> ToolchainInstance:
    """Return the instance that lowers with the table of choices of this digest."""
    return msgspec.structs.replace(instance, config=(*instance.config, TUNED), tuning=table)


def promising(inputs: SearchInputs, tunable: Collection[str]) -> list[Candidate]:
    """Return the candidates whose tuning could change the answer, those that take longest first.

    They are those of the best cover if each of them became as fast as it could.

    Args:
        inputs: All candidates with their costs.
        tunable: Ids of those that can be tuned.
    """
    costs = inputs.costs
    by_id = {c.id: c for c in inputs.candidates if costs.cost(c.id).usable}
    if by_id.keys().isdisjoint(tunable):
        return []
    problem = inputs.with_candidates(by_id.values(), costs).problem()
    hoped = tuple(
        msgspec.structs.replace(candidate, cost_us=(1 - GAIN) * candidate.cost_us)
        if candidate.id in tunable and candidate.cost_us is not None
        else candidate
        for candidate in problem.candidates
    )
    cover = set(solve(msgspec.structs.replace(problem, candidates=hoped)).cover or ())
    chosen = [c for c in by_id.values() if c.id in cover and c.id in tunable]
    return sorted(chosen, key=lambda c: -(costs.cost(c.id).us or 0.0))


def ranked(
    chosen: Sequence[Candidate],
    costs: CostTable,
    tasks: Mapping[str, Sequence[TuneTask]],
    records: Mapping[str, TuneRecord],
) -> list[tuple[TuneTask, float]]:
    """Return unfinished workloads of candidates, the most promising first.

    Args:
        chosen: The candidates.
        costs: Their costs.
        tasks: What of a candidate can be tuned, by measurement key.
        records: What is known of workloads.

    Returns:
        Tasks with the microseconds that each takes in all the places where it stands.
    """
    scores = defaultdict[str, float](float)
    by_workload: dict[str, TuneTask] = {}
    for candidate in chosen:
        listed = tasks.get(candidate.key, ())
        whole = sum(task.weight for task in listed)
        for task in listed:
            record = records.get(task.workload)
            if whole and not (record is not None and record.complete):
                by_workload[task.workload] = task
                us = costs.cost(candidate.id).us or 0.0
                scores[task.workload] += us * task.weight / whole
    order = sorted(scores, key=lambda w: (-scores[w], w))
    return [(by_workload[w], scores[w]) for w in order if scores[w] > 0]
