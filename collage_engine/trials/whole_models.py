"""Trials of whole models: each toolchain alone, before anything is measured in isolation.

The contenders are tried a few at a time, in the order in which they are likely to be fastest. The
two fastest so far stay loaded and take part in the rounds of the next ones, so that the machine's
drift falls on all of them. As soon as one of them runs with right numbers, there is an answer,
which each later one can only improve. Modules are kept: a confirmation takes them instead of
building anew.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collage_engine.machine.worker import WorkerError
from collage_engine.records.errors import ToolchainError
from collage_engine.trials.contender import Contender, ContenderResult
from collage_engine.trials.placement_process import PlacementProcess
from collage_engine.trials.ranking import RANKING, Difference, RankingSettings, difference
from collage_engine.trials.rounds import (
    InterleavedRounds,
    Rounds,
    WithdrawalSettings,
    median_of,
    shared_slowness,
    slowness,
)
from collage_engine.trials.runner import NOT_REACHED, Module, TrialRunner
from collage_engine.wording import stages as say

OnProgress = Callable[[int, int, str], None]
"""Takes the contenders done, the contenders in all, and a few words on what is at work."""


@dataclass(frozen=True, kw_only=True)
class WholeModelSettings:
    """How whole models are tried."""

    at_once: int = 2
    """Contenders that are built and timed together; chosen: a build takes one processor."""
    staying: int = 2
    """The fastest so far that stay for the next rounds; chosen: the least that can tell a slow
    machine from a process of bad luck (``rounds.shared_slowness``). Where memory holds one
    placement at a time, one stays."""
    rounds: int = 5
    """Rounds of each; chosen: enough to distinguish 10 %; the confirmation does the rest."""
    rounds_s: float = 3.0
    """Seconds for the rounds of those timed together, three rounds at least; chosen."""
    runs_per_profile: int = 3
    """Runs of the model in the profile of a placement of several partitions; chosen."""
    withdrawal: WithdrawalSettings = field(default_factory=WithdrawalSettings)


@dataclass(frozen=True, kw_only=True)
class WholeModels:
    """What was tried before anything was measured in isolation.

    Attributes:
        results: what came of each contender that was tried, in the order of the trials.
        unreached: contenders that were left out for want of time.
        sets: the rounds of those that were timed together, set by set, by their keys, as they were
            measured: in each round of a set all of them ran within the same second or two.
    """

    results: tuple[ContenderResult, ...] = ()
    unreached: tuple[Contender, ...] = ()
    sets: tuple[Mapping[tuple[object, ...], Sequence[float]], ...] = ()

    @property
    def timed(self) -> tuple[ContenderResult, ...]:
        """Return the results of those that ran with right numbers, the fastest first."""
        timed = [one for one in self.results if one.reason is None and one.measured_us]
        return tuple(sorted(timed, key=lambda one: one.measured_us or math.inf))

    @property
    def best(self) -> ContenderResult | None:
        """Return the result of the fastest that may be exported; None where none runs."""
        return next((one for one in self.timed if one.contender.eligible), None)

    def differences(self, settings: RankingSettings = RANKING) -> dict[str, Difference]:
        """Return the time of the fastest that may be exported less that of each other one.

        Two that were timed together are compared round by round. Others are compared through those
        that were timed with both, since the fastest so far takes part in the next rounds.

        Args:
            settings: How sure an interval is to be.

        Returns:
            The differences in microseconds, by the other contender's name; without those that no
            common rounds connect with the fastest.
        """
        best = self.best
        if best is None:
            return {}
        found: dict[tuple[object, ...], Difference | None] = {best.contender.key: None}
        waiting = [best.contender.key]
        while waiting:
            one = waiting.pop(0)
            for other in (key for key in self.by_key if key not in found):
                together = [taken for taken in self.sets if one in taken and other in taken]
                apart = difference(
                    [us for taken in together for us in taken[one]],
                    [us for taken in together for us in taken[other]],
                    settings,
                    fixed_rounds=True,
                )
                if apart is not None:
                    before = found[one]
                    found[other] = apart if before is None else before + apart
                    waiting.append(other)
        return {
            one.contender.name: apart
            for one in self.timed
            if (apart := found.get(one.contender.key)) is not None
        }

    def joined_by(self, later: WholeModels) -> WholeModels:
        """Return these with the fastest that was tried later, beside the fastest of these.

        The machine may have been faster or slower then. Where it was faster, the rounds of a set
        are multiplied by what those take less in it whose time is known from before or from an
        earlier set. Where it was slower they are divided by that only if several say so: else a
        later one would seem faster than it was ever measured, for the bad luck of one process.

        Args:
            later: trials in which the fastest of these took part once more.
        """
        best = self.best
        if best is None or best.measured_us is None:
            return self
        known_us = {best.contender.key: best.measured_us}
        scaled: dict[tuple[object, ...], list[float]] = {}
        for taken in later.sets:
            medians = {key: us for key, rounds in taken.items() if (us := median_of(rounds)) > 0}
            ratios = [us / known_us[key] for key, us in medians.items() if key in known_us]
            if not ratios:
                continue
            slower = shared_slowness(ratios) if len(ratios) > 1 else min(1.0, ratios[0])
            for key, rounds in taken.items():
                scaled.setdefault(key, []).extend(us / slower for us in rounds)
            known_us = {key: us / slower for key, us in medians.items()} | known_us
        others = [
            replace(one, rounds_us=tuple(scaled[one.contender.key]))
            for one in later.timed
            if one.contender.eligible
            and one.contender.key in scaled
            and one.contender.key not in self.by_key
        ]
        fastest = min(others, key=lambda one: one.measured_us or math.inf, default=None)
        if fastest is None:
            return self
        return replace(self, results=(*self.results, fastest), sets=(*self.sets, *later.sets))

    @property
    def by_key(self) -> dict[tuple[object, ...], ContenderResult]:
        """Return the results by the keys of their contenders."""
        return {one.contender.key: one for one in self.results}

    @property
    def modules(self) -> dict[tuple[object, ...], Module]:
        """Return the modules that were built, by their contenders' keys."""
        return {
            key: (one.folder, one.built)
            for key, one in self.by_key.items()
            if one.folder is not None and one.built is not None
        }


@dataclass(frozen=True, kw_only=True)
class TrialTime:
    """How long whole models may be tried.

    Attributes:
        left_s: seconds that are left for it now; once there is an answer, nothing begins that is
            not likely to end within them.
        is_wanted: whether there is time for a contender, once there is an answer.
        on_answer: takes what is known whenever there is a faster answer than before.
        on_progress: takes each step.
    """

    left_s: Callable[[], float]
    is_wanted: Callable[[Contender], bool] = lambda contender: True
    on_answer: Callable[[WholeModels], None] = lambda known: None
    on_progress: OnProgress = lambda done, total, now: None


def time_whole_models(
    runner: TrialRunner,
    contenders: Sequence[Contender],
    given: TrialTime,
    settings: WholeModelSettings | None = None,
) -> WholeModels:
    """Build, check and time contenders until the time is over and one of them runs.

    Args:
        runner: The runner of the trials; its folder must outlive the result, since modules lie in
            it.
        contenders: The contenders, in the order in which they are tried.
        given: The time for it, and what takes answers and progress.
        settings: How they are tried; None: as by default.

    Returns:
        What came of each contender, also of those that were not reached.

    Raises:
        Cancelled: The user stopped it.
    """
    return _WholeModelTrials(runner, contenders, given, settings or WholeModelSettings()).run()


class _WholeModelTrials:
    """The state of the trials of whole models while they go on."""

    def __init__(
        self,
        runner: TrialRunner,
        contenders: Sequence[Contender],
        given: TrialTime,
        settings: WholeModelSettings,
    ) -> None:
        self.runner = runner
        self.given = given
        self.settings = settings
        self.waiting = list(contenders)
        self.total = len(self.waiting)
        self.sets: list[Rounds[PlacementProcess]] = []
        self.parts_us: dict[PlacementProcess, tuple[float, ...]] = {}
        self.tried: list[PlacementProcess] = []
        self.best: PlacementProcess | None = None
        self.staying: list[PlacementProcess] = []
        """Those that are still loaded, the fastest that may be exported first."""
        self.batch_s = 0.0
        """Seconds that the last contenders tried together took."""

    def run(self) -> WholeModels:
        """Try the contenders, a few at a time, and return what came of them."""
        while self.waiting and self.may_go_on():
            batch = self.waiting[: self.settings.at_once]
            self.waiting = self.waiting[self.settings.at_once :]
            began = time.monotonic()
            self.try_together([self.runner.process(one) for one in batch])
            self.batch_s = time.monotonic() - began
        self.runner.end_builders()
        return self.known()

    def may_go_on(self) -> bool:
        """Tell whether further contenders may begin: there is no answer yet, or time for them."""
        if self.best is None:
            return True
        return self.given.left_s() > self.batch_s and self.given.is_wanted(self.waiting[0])

    def is_over(self) -> bool:
        """Tell whether no time is left."""
        return self.given.left_s() <= 0.0

    def try_together(self, processes: Sequence[PlacementProcess]) -> None:
        """Build, load and time some contenders, beside the fastest ones so far.

        Those that are not reached for want of time wait again, in case that nothing before them
        runs.
        """
        done = self.total - len(self.waiting) - len(processes)

        def tell(what: str) -> Callable[[PlacementProcess], None]:
            return lambda one: self.given.on_progress(
                done, self.total, what.format(name=one.contender.title)
            )

        # The fastest so far is among them, so that none has to be built once the time is over.
        known = [self.best] if self.best is not None else []
        self.runner.build([*known, *processes], tell(say.BUILDING), self.is_over)
        built = [one for one in processes if one.failure is None]
        self.runner.load(built, tell(say.CHECKING), self.is_over)
        # What was not reached is tried again, should nothing before it have run.
        missed = [one.contender for one in processes if one.failure == NOT_REACHED]
        self.waiting = [*missed, *self.waiting]
        reached = [one for one in processes if one.failure != NOT_REACHED]
        self.tried += reached
        present = [one for one in reached if one.loaded and one.failure is None]
        if present:
            tell(say.TIMING)(present[0])
            self.time(present)

    def time(self, present: Sequence[PlacementProcess]) -> None:
        """Run rounds of some contenders and of the fastest so far; the fastest of all stay loaded.

        Args:
            present: The contenders, which are loaded and have right numbers.
        """
        settings, best = self.settings, self.best
        entrants = [*self.staying, *present]
        taken = InterleavedRounds(
            entrants, self.runner.timed_round, lambda one: one.can_win, settings.withdrawal
        ).run(settings.rounds, settings.rounds_s)
        self.sets.append(taken)
        eligible = [one for one in taken if one.can_win]
        fastest = min(eligible, key=lambda one: median_of(taken[one]), default=None)
        for process in present:
            self.look_into(process)
        if fastest is not None and fastest is not best:
            self.best = fastest
            self.given.on_answer(self.known())
        # One that withdrew is so much slower that its rounds would take the time of the others.
        near = [one for one in taken if not any(map(math.isnan, taken[one]))]
        near.sort(key=lambda one: (one is not self.best, median_of(taken[one])))
        most = settings.staying if self.runner.files.one_loaded is None else 1
        self.staying = near[:most]
        for process in entrants:
            if process not in self.staying:
                process.close()

    def look_into(self, process: PlacementProcess) -> None:
        """Note how much memory a contender takes, and the time of each of several partitions."""
        if process.failure is not None:
            return
        # What was timed stands, whatever more can be found out about it.
        with contextlib.suppress(WorkerError, ToolchainError):
            process.ask_memory()
            if len(process.contender.cover) > 1:
                taken, _ = process.partition_times(self.settings.runs_per_profile)
                self.parts_us[process] = tuple(taken)

    def known(self) -> WholeModels:
        """Return what is known so far.

        The rounds of each contender are those of all sets that it took part in, divided by the
        set's slowness: contenders of different sets are compared as if the machine had been the
        same in all of them.
        """
        rounds: dict[PlacementProcess, list[float]] = {}
        for taken, slower in zip(self.sets, slowness(self.sets), strict=True):
            for process, us in taken.items():
                rounds.setdefault(process, []).extend(one / slower for one in us)
        return WholeModels(
            results=tuple(self.result_of(one, rounds.get(one, ())) for one in self.tried),
            unreached=tuple(self.waiting),
            sets=tuple(
                {one.contender.key: rounds for one, rounds in taken.items()} for taken in self.sets
            ),
        )

    def result_of(self, process: PlacementProcess, rounds_us: Sequence[float]) -> ContenderResult:
        """Return what came of the contender of a process, with its rounds."""
        return ContenderResult(
            contender=process.contender,
            reason=process.failure,
            rounds_us=tuple(rounds_us),
            max_abs_error=process.max_abs_error,
            max_rel_error=process.max_rel_error,
            memory=process.memory,
            folder=process.folder,
            built=process.built,
            parts_us=self.parts_us.get(process, ()),
            build_s=process.build_s,
            load_s=process.load_s,
            from_trial=True,
        )
