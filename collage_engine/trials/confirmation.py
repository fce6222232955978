"""Confirmation: the best few placements and all baselines, built whole and timed end to end.

It is a trial of all contenders at once, on the same ``TrialRunner`` as every other trial: each has
a process of its own, and rounds go around the processes, one runs while the others sleep. The
winner is chosen on one set of rounds; what is reported comes from fresh ones, in fresh processes of
those near it, so that the choice does not flatter itself. Their number is fixed before the first of
them (as many as the selection took), so that their intervals need not allow for repeated looks, as
those of the selection do. Should the fresh rounds contradict the choice, beyond doubt or together
with the first ones, the choice falls on what they favour, and fresh rounds are taken again.

A confirmation never makes an answer worse. Where the winner takes longer than a whole model took in
its trial at the begin of the run, one of the two was in an unlucky process: both are loaded once
more, and the medians of all their processes decide.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from collage_engine.machine.cgroups import available_bytes
from collage_engine.machine.cuda import cuda_probe
from collage_engine.machine.worker import WorkerError
from collage_engine.records.counted import counted
from collage_engine.records.errors import InfeasibleError, ToolchainError
from collage_engine.records.same_work import SAME_WORK_FACTOR
from collage_engine.trials.contender import Contender, ContenderResult
from collage_engine.trials.placement_process import PlacementProcess
from collage_engine.trials.ranking import (
    RANKING,
    Difference,
    RankingSettings,
    Timed,
    choose,
    difference,
    settled,
)
from collage_engine.trials.rounds import InterleavedRounds, Rounds, WithdrawalSettings, median_of
from collage_engine.trials.runner import TrialRunner
from collage_engine.trials.trial_job import KernelTime
from collage_engine.wording import stages as say

PACE_FROM = 3
"""Contenders that were timed in a trial and in the confirmation, from which on their median tells
how fast the machine is; chosen: one or two may have other processes than before."""
ROUNDS_ALONE = 4
"""Rounds of a contender, in the selection and afresh, where it is loaded for each of them; chosen:
loading gigabytes takes seconds, and the calls of one round are as many as those of ten short ones.
"""
OnProgress = Callable[[int, int, str], None]
"""Takes the steps done, the steps in all, and a few words on what is at work."""

ProcessRounds = Rounds[PlacementProcess]


@dataclass(frozen=True, kw_only=True)
class CapacitySettings:
    """How many contenders are loaded at a time: each holds its weights a few times."""

    most_at_once: int | None = None
    """Contenders loaded at a time; None: what memory holds."""
    least: int = 4
    """Contenders loaded at a time at least, whatever memory seems to hold; chosen."""
    process_bytes: float = 250e6
    """Bytes of a process without weights; chosen, above what any toolchain was seen to take."""
    weights_factor: float = 4.0
    """Memory of a process per byte of weights; chosen: packed copies, and twice at loading."""
    memory_share: float = 0.6
    """Share of the free memory that contenders may take; chosen."""
    device_process_bytes: float = 600e6
    """Bytes of a process's context on a device; chosen."""
    device_weights_factor: float = 3.0
    """Bytes of device memory per byte of weights; chosen."""
    device_memory_share: float = 0.8
    """Share of a device's memory that contenders may take; chosen."""

    def most_loaded(self, contenders: Sequence[Contender], weights_bytes: int) -> int:
        """Return how many contenders may be loaded at a time.

        Args:
            contenders: All that take part; on a device, the device's memory bounds them, too.
            weights_bytes: Bytes of the model's weights, which each process holds a few times.

        Returns:
            The number that is asked for, or else the number that the free memory holds; in either
            case ``least`` at least.
        """
        if self.most_at_once is not None:
            return max(self.least, self.most_at_once)
        each = self.process_bytes + self.weights_factor * weights_bytes
        most = max(self.least, int(available_bytes() * self.memory_share / each))
        if any(part.instance.architecture for one in contenders for part in one.cover):
            # Each process has a context of its own on the device.
            memory = min((device.memory_bytes for device in cuda_probe().devices), default=0)
            each = self.device_process_bytes + self.device_weights_factor * weights_bytes
            most = min(most, max(self.least, int(memory * self.device_memory_share / each)))
        return most


@dataclass(frozen=True, kw_only=True)
class ConfirmationSettings:
    """How long contenders are timed, and who may win."""

    selection_rounds: int = 9
    """Rounds that choose the winner; chosen: the least after which an interval may exclude a tie
    and still be looked at again (``RankingSettings.looks``)."""
    fresh_rounds: int = 10
    """Rounds that are reported, more where the selection took more; chosen: from ten on, one
    bad round widens no interval."""
    most_rounds: int = 60
    """Rounds of the selection at most, while contenders are tied only for want of rounds and the
    budget lasts; chosen."""
    budget_s: float = 40.0
    """Seconds for all rounds together; the least rounds of each set are run even so; chosen."""
    selection_share: float = 0.45
    """Share of the budget for the selection; chosen."""
    fresh_share: float = 0.55
    """Share of the budget for the fresh rounds; chosen."""
    again_share: float = 0.3
    """Share of the budget, added to it, for fresh rounds of another winner; chosen."""
    near_factor: float = SAME_WORK_FACTOR
    """Multiple of the fastest median up to which a contender may still win: what is slower does
    not win for having another process."""
    most_reloaded: int = 4
    """Contenders that are loaded again at most, in another process; chosen."""
    profile_runs: int = 9
    """Runs of the model in the winner's profile; chosen."""
    withdrawal: WithdrawalSettings = field(default_factory=WithdrawalSettings)
    ranking: RankingSettings = RANKING
    capacity: CapacitySettings = field(default_factory=CapacitySettings)


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What was confirmed.

    Attributes:
        results: one per contender given, in their order; equal covers share times.
        winner: what is exported.
        named: ``collage``, or the name of the baseline that won: what the user hears.
        tied: names of the contenders that the selection could not tell from the fastest.
        differences: the winner less each other contender, on the fresh rounds; where there was no
            time for any, on those of the trials.
        in_place_us: µs of each partition (execution order) inside the real run.
        residual: kernels outside every partition.
        pace: times as long as in their trials that contenders took in the fresh rounds, in the
            median of ``PACE_FROM`` or more; None: there are fewer.
    """

    results: tuple[ContenderResult, ...]
    winner: ContenderResult
    named: str
    tied: tuple[str, ...]
    differences: dict[str, Difference]
    in_place_us: tuple[float, ...]
    residual: tuple[KernelTime, ...]
    pace: float | None = None


class Reserve(Protocol):
    """The contenders for which there seemed to be no time.

    What building takes can only be predicted; once the first contenders are built, it is known how
    much time there really is.
    """

    def further(self) -> Sequence[Contender]:
        """Return contenders that there is time for after all, each once; none: there is none.

        It is asked again each time that those it has returned are built.
        """

    def settings(self) -> ConfirmationSettings:
        """Return the settings for the time that is left when everybody is built."""


def confirm(
    runner: TrialRunner,
    contenders: Sequence[Contender],
    *,
    settings: ConfirmationSettings | None = None,
    on_progress: OnProgress | None = None,
    hurry: Callable[[], bool] = lambda: False,
    trials_us: Mapping[tuple[object, ...], float] | None = None,
    reserve: Reserve | None = None,
) -> Confirmation:
    """Build, check and time the contenders, and choose the winner.

    Args:
        runner: The runner of the trials; its folder must outlive the result, since the winner's
            module lies in it.
        contenders: The placements and baselines.
        settings: How long they are timed; None: as by default.
        on_progress: Is called before each step.
        hurry: Tells whether to come to an end: what is not built yet is then left out, and no more
            than the least rounds are run.
        trials_us: Microseconds that contenders took in earlier trials, by their keys. Where the
            winner takes clearly longer than the fastest of these, the two are compared once more.
        reserve: Further contenders, if time is left when these are built; None: there are none.

    Returns:
        The results of all contenders, also of those that the reserve gave, and which of them won.

    Raises:
        ToolchainError: No placement could be built and run with right numbers.
        InfeasibleError: All that run take more memory than is allowed.
        Cancelled: The user stopped it.
    """
    settings = settings or ConfirmationSettings()
    progress = _Progress(on_progress or (lambda done, total, now: None))
    return _Confirming(
        runner, contenders, settings, progress, hurry, trials_us or {}, reserve
    ).run()


def few_rounds(settings: ConfirmationSettings) -> ConfirmationSettings:
    """Return the settings for contenders that are loaded anew for each of their rounds."""
    fewest = min(settings.selection_rounds, ROUNDS_ALONE)
    return replace(
        settings,
        selection_rounds=fewest,
        fresh_rounds=min(settings.fresh_rounds, ROUNDS_ALONE),
        most_rounds=fewest,
        most_reloaded=0,
    )


@dataclass
class _Progress:
    """Steps done and steps in all, as far as they are known."""

    tell: OnProgress
    total: int = 0
    done: int = 0

    def step(self, now: str) -> None:
        self.tell(self.done, max(self.total, self.done), now)
        self.done += 1


class _Confirming:
    """One confirmation under way."""

    def __init__(
        self,
        runner: TrialRunner,
        contenders: Sequence[Contender],
        settings: ConfirmationSettings,
        progress: _Progress,
        hurry: Callable[[], bool],
        trials_us: Mapping[tuple[object, ...], float],
        reserve: Reserve | None,
    ) -> None:
        self.runner = runner
        self.settings = self.for_memory(settings)
        self.progress = progress
        self.hurry = hurry
        self.trials_us = trials_us
        self.reserve = reserve
        self.contenders: list[Contender] = []
        self.entered: dict[tuple[object, ...], PlacementProcess] = {}
        self.enter(contenders)
        self.left_early: ProcessRounds = {}
        """Rounds of those that memory did not hold to the end."""

    @property
    def processes(self) -> list[PlacementProcess]:
        """Return the process of each different module, in the contenders' order."""
        return list(self.entered.values())

    def enter(self, contenders: Sequence[Contender]) -> None:
        """Let contenders take part, each different module once."""
        self.contenders += contenders
        for key, one in distinct(contenders).items():
            if key not in self.entered:
                self.entered[key] = self.runner.process(one)

    def for_memory(self, settings: ConfirmationSettings) -> ConfirmationSettings:
        """Return the settings, with few rounds where memory holds one placement at a time."""
        return settings if self.runner.files.one_loaded is None else few_rounds(settings)

    def run(self) -> Confirmation:
        """Build, load, select, time afresh and profile; see ``confirm``."""
        self.build()
        self.load_all()
        settings = self.settings
        selection = self.rounds(
            settings.selection_rounds, settings.selection_share, settings.most_rounds
        )
        winner, tied = self.choose(selection)
        reloaded = near(self.processes, selection, settings)
        self.reload(reloaded)
        fresh_rounds = max(settings.fresh_rounds, *map(len, selection.values()))
        self.progress.total += fresh_rounds - settings.fresh_rounds
        fresh = self.rounds(fresh_rounds, settings.fresh_share)
        better = self.contradicted(winner, selection, fresh)
        if better is not None:
            winner, tied = better
            fresh = self.rounds(fresh_rounds, settings.again_share)
            if winner.failure is not None:
                name = winner.contender.name
                raise ToolchainError(f"{name} failed while timed: {winner.failure}")
        faster = self.faster_before(winner, fresh)
        if faster is not None and not self.hurry():
            joint = winner in reloaded or faster in reloaded
            before = [selection, fresh] if joint else [joined(selection, fresh)]
            winner, fresh = self.compare_again(winner, faster, before, fresh)
            tied = [winner, *(one for one in tied if one is not winner)]
        self.ask_memory()
        in_place, residual = self.profile(winner)
        results = {
            process: result_of(process, fresh.get(process, ())) for process in self.processes
        }
        return Confirmation(
            results=tuple(self.result_for(one, results) for one in self.contenders),
            winner=results[winner],
            named=name_of(winner.contender, self.contenders),
            tied=tuple(one.contender.name for one in tied if one is not winner),
            differences=self.differences(winner, fresh),
            in_place_us=tuple(in_place),
            residual=tuple(residual),
            pace=self.pace(fresh),
        )

    # ------------------------------------------------------------------ building and loading

    def build(self) -> None:
        """Build every contender, and those of the reserve that there is time for.

        Raises:
            Cancelled: The user stopped it.
        """
        settings = self.settings
        rounds = settings.selection_rounds + settings.fresh_rounds
        self.progress.total = 2 * len(self.processes) + rounds + 1
        self.build_waiting()
        while self.reserve is not None and not self.hurry():
            further = self.reserve.further()
            if not further:
                self.settings = self.for_memory(self.reserve.settings())
                break
            before = len(self.processes)
            self.enter(further)
            self.progress.total += 2 * (len(self.processes) - before)
            self.build_waiting()
        self.runner.end_builders()

    def build_waiting(self) -> None:
        """Build those that have neither been built nor failed."""
        self.runner.build(
            [
                one
                for one in self.processes
                if not one.contender.python_session and one.failure is None
            ],
            lambda one: self.progress.step(say.BUILDING.format(name=one.contender.title)),
            self.hurry,
        )

    def load_all(self) -> None:
        """Load every contender in its own process, which checks its numbers.

        Where memory does not hold all of them, the slow ones leave for the next ones
        (``make_room``).

        Raises:
            ToolchainError: None of them can be built and run with right numbers.
            InfeasibleError: Those that can take more memory than is allowed.
            Cancelled: The user stopped it.
        """
        waiting = [one for one in self.processes if one.failure is None]
        self.progress.done += len(self.processes) - len(waiting)
        contenders = [one.contender for one in self.processes]
        most_loaded = self.settings.capacity.most_loaded(
            contenders, self.runner.files.model.weights_bytes
        )
        if self.runner.files.one_loaded is not None:
            most_loaded = len(contenders)  # one of them is loaded at a time
        at_once = self.runner.settings.loaders
        while waiting:
            batch, waiting = waiting[:at_once], waiting[at_once:]
            if len(self.loaded()) + len(batch) > most_loaded:
                self.make_room(most_loaded - len(batch))
            self.load(batch)
        if not any(one.can_win for one in self.processes):
            barred = [one.contender for one in self.processes if one.failure is None]
            if barred and self.runner.settings.most_memory_bytes:
                raise nothing_fits(barred)
            raise nothing_runs((one.contender.name, one.failure) for one in self.processes)

    def loaded(self) -> list[PlacementProcess]:
        """Return those that are in a process and have not failed."""
        return [one for one in self.processes if one.loaded and one.failure is None]

    def load(self, processes: Sequence[PlacementProcess]) -> None:
        """Load these, or load them again in another process."""
        self.runner.load(
            processes,
            lambda one: self.progress.step(say.CHECKING.format(name=one.contender.title)),
            self.hurry,
        )

    def make_room(self, places: int) -> None:
        """Unload slow contenders for good, so that others can be loaded.

        A few rounds of all that are loaded decide. The times of those that leave are those of these
        rounds; they cannot be exported any more.

        Args:
            places: How many contenders stay: the fastest ones.
        """
        present = self.loaded()
        rounds = self.interleaved(present).run(self.settings.withdrawal.least_rounds, 0.0)
        for process in sorted(rounds, key=lambda one: median_of(rounds[one]))[places:]:
            self.left_early[process] = rounds[process]
            with contextlib.suppress(WorkerError, ToolchainError):
                process.ask_memory()
            process.discard()

    def reload(self, processes: Sequence[PlacementProcess]) -> None:
        """Load contenders again, each in another process, as many at a time as the runner loads."""
        self.progress.total += len(processes)
        at_once = self.runner.settings.loaders
        for start in range(0, len(processes), at_once):
            self.load(processes[start : start + at_once])

    # ------------------------------------------------------------------ timing

    def interleaved(
        self, processes: Sequence[PlacementProcess]
    ) -> InterleavedRounds[PlacementProcess]:
        """Return the rounds of these contenders, none of which has been run yet."""
        return InterleavedRounds(
            processes,
            self.runner.timed_round,
            lambda one: one.can_win,
            self.settings.withdrawal,
        )

    def rounds(self, count: int, share: float, most: int | None = None) -> ProcessRounds:
        """Run rounds over all contenders that are loaded.

        Args:
            count: How many rounds are run, unless time ends them before.
            share: The share of the settings' budget that they may take.
            most: How many rounds are run while the verdict is not settled; None: ``count``.

        Returns:
            The microseconds of each contender, a number for each round; also the earlier rounds of
            those that left for want of memory.
        """
        started = 0

        def on_round(number: int, racing: int) -> None:
            nonlocal started
            started = number + 1
            self.progress.total += number >= count
            self.progress.step(
                say.ROUND.format(
                    number=started,
                    rounds=max(count, started),
                    contenders=counted(racing, "contender"),
                )
            )

        taken = self.interleaved(self.loaded()).run(
            count,
            self.settings.budget_s * share,
            most=most,
            settled=self.is_settled,
            on_round=on_round,
            hurry=self.hurry,
        )
        self.progress.done += max(0, count - started)
        return taken | self.left_early

    def is_settled(self, rounds: Mapping[PlacementProcess, Sequence[float]]) -> bool:
        """Tell whether more rounds would hardly change who wins."""
        timed = [Timed(one.contender, us) for one, us in rounds.items() if one.can_win]
        return not timed or settled(timed, self.settings.ranking)

    def choose(
        self, rounds: ProcessRounds, *, fixed_rounds: bool = False
    ) -> tuple[PlacementProcess, list[PlacementProcess]]:
        """Choose the winner of some rounds among the contenders that can be exported.

        Args:
            rounds: The microseconds of each contender, a number for each round.
            fixed_rounds: Whether the number of rounds was fixed before the first of them, so that
                intervals need not allow for repeated looks.

        Returns:
            The winner, and all that are tied with it, the winner first.

        Raises:
            ToolchainError: Every contender failed while it was timed.
        """
        by_key = {one.contender.key: one for one in rounds if one.can_win}
        timed = [Timed(one.contender, rounds[one]) for one in by_key.values()]
        if not timed:
            raise ToolchainError("every placement failed while it was timed")
        ranked = choose(timed, self.settings.ranking, fixed_rounds=fixed_rounds)
        tied = [by_key[entry.contender.key] for entry in ranked]
        return tied[0], tied

    def contradicted(
        self, winner: PlacementProcess, selection: ProcessRounds, fresh: ProcessRounds
    ) -> tuple[PlacementProcess, list[PlacementProcess]] | None:
        """Return the contender that the fresh rounds favour over the winner of the selection.

        They do so where they show beyond doubt that it is faster, or where it is chosen on the
        selection's and the fresh rounds together; also where the winner failed meanwhile.

        Returns:
            The other contender, and all that are tied with it; None: the winner stays.

        Raises:
            ToolchainError: Every contender failed while it was timed.
        """
        favoured, tied = self.choose(fresh, fixed_rounds=True)
        if winner.failure is not None:
            return favoured, tied
        if favoured is winner:
            return None
        apart = difference(fresh[winner], fresh[favoured], self.settings.ranking, fixed_rounds=True)
        if apart is not None and apart.low_us > 0:
            return favoured, tied
        # Not beyond doubt by the fresh rounds alone: what do all of them say?
        favoured, tied = self.choose(joined(selection, fresh))
        return None if favoured is winner else (favoured, tied)

    def faster_before(
        self, winner: PlacementProcess, fresh: ProcessRounds
    ) -> PlacementProcess | None:
        """Return the contender that took clearly less in its trial than the winner takes now.

        Where the machine is slower now than it was in the trials, what a trial took is scaled by
        that (``Confirmation.pace``).

        Returns:
            The contender with the least time in a trial, where that is less than the winner's
            median by more than the ranking's ``near``; None: there is none, or it is the winner
            itself.
        """
        trials = {
            process: self.trials_us[process.contender.key]
            for process in self.loaded()
            if process.can_win and process.contender.key in self.trials_us and process in fresh
        }
        fastest = min(trials, key=trials.__getitem__, default=winner)
        if fastest is winner:
            return None
        limit_us = median_of(fresh[winner]) / (1 + self.settings.ranking.near)
        slower = max(1.0, self.pace(fresh) or 1.0)
        return fastest if trials[fastest] * slower < limit_us else None

    def pace(self, fresh: ProcessRounds) -> float | None:
        """Return how many times as long as in their trials contenders take (``Confirmation``)."""
        factors = [
            median_of(rounds) / self.trials_us[process.contender.key]
            for process, rounds in fresh.items()
            if process.contender.key in self.trials_us and median_of(rounds) > 0
        ]
        return statistics.median(factors) if len(factors) >= PACE_FROM else None

    def compare_again(
        self,
        winner: PlacementProcess,
        faster: PlacementProcess,
        before: Sequence[ProcessRounds],
        fresh: ProcessRounds,
    ) -> tuple[PlacementProcess, ProcessRounds]:
        """Load two contenders once more; the usual ratio of their times in all processes decides.

        In each set of rounds the two are compared round by round, so that a set in which the
        machine was slower counts like any other.

        Args:
            winner: The winner so far.
            faster: The contender that was faster in its trial.
            before: The sets of rounds that were run, each in other processes of the two.
            fresh: The fresh rounds of all contenders, which have taken place.

        Returns:
            The winner, and the new rounds of all contenders, which are reported.

        Raises:
            ToolchainError: Both failed while they were timed.
        """
        both = (winner, faster)
        self.reload(both)
        count = max(map(len, fresh.values()))
        self.progress.total += count
        again = self.rounds(count, self.settings.again_share)
        running = [one for one in both if one in again and one.can_win]
        if not running:
            raise ToolchainError("every placement failed while it was timed")
        if len(running) == 1:
            return running[0], again
        logs = [paired_log_ratio(taken[winner], taken[faster]) for taken in (*before, again)]
        trials_us = [self.trials_us.get(one.contender.key) for one in both]
        if trials_us[0] and trials_us[1]:
            logs.append(math.log(trials_us[0] / trials_us[1]))
        log_ratio = median_of(logs)
        if abs(log_ratio) <= math.log1p(self.settings.ranking.near):
            return min(both, key=lambda one: (len(one.contender.cover), one is faster)), again
        return faster if log_ratio > 0 else winner, again

    # ------------------------------------------------------------------ what is reported

    def ask_memory(self) -> None:
        """Ask every process that is there for its sizes."""
        for process in self.loaded():
            # One that has just died keeps its times: its memory is not known.
            with contextlib.suppress(WorkerError, ToolchainError):
                process.ask_memory()

    def profile(self, winner: PlacementProcess) -> tuple[list[float], list[KernelTime]]:
        """Find out where the winner's time goes inside a real run.

        Returns:
            The microseconds of each partition in execution order, and the kernels outside of all
            partitions; two empty lists where that could not be measured.
        """
        self.progress.step(say.PROFILING_THE_WINNER)
        if winner.built is None:
            return [], []
        try:
            taken, outside = winner.partition_times(self.settings.profile_runs)
        except (WorkerError, ToolchainError):
            return [], []  # what was timed stands; where in it the time goes is not known
        return (taken, outside) if any(taken) or outside else ([], [])

    def differences(self, winner: PlacementProcess, fresh: ProcessRounds) -> dict[str, Difference]:
        """Return the winner's time less that of each other contender, by the other one's name."""
        found: dict[str, Difference] = {}
        for process, rounds in fresh.items():
            if process is not winner and process.failure is None:
                apart = difference(fresh[winner], rounds, self.settings.ranking, fixed_rounds=True)
                if apart is not None:
                    found[process.contender.name] = apart
        return found

    def result_for(
        self, contender: Contender, results: Mapping[PlacementProcess, ContenderResult]
    ) -> ContenderResult:
        """Return the result of a contender: that of the process that runs its module.

        Args:
            contender: One of the contenders that were given; several may have the same module.
            results: The results by process.
        """
        if contender.reason is not None:
            return ContenderResult(contender=contender, reason=contender.reason)
        process = self.entered[contender.key]
        over_memory = contender.eligible and process.over_memory is not None
        if over_memory:
            contender = replace(contender, eligible=False, barred=process.over_memory)
        return replace(results[process], contender=contender, over_memory=over_memory)


def nothing_fits(barred: Iterable[Contender]) -> InfeasibleError:
    """Return the error of a run whose placements all take more memory than they may."""
    reasons = "; ".join(f"{one.name}: {one.barred}" for one in barred if one.barred)
    return InfeasibleError(f"no placement keeps to the limit on memory ({reasons})")


def nothing_runs(failures: Iterable[tuple[str, str | None]]) -> ToolchainError:
    """Return the error of a run in which no placement runs.

    Args:
        failures: The name of each placement, and the reason why it does not run.
    """
    reasons = "; ".join(f"{name}: {reason}" for name, reason in failures)
    return ToolchainError(f"no placement could be built with right numbers ({reasons})")


def distinct(contenders: Sequence[Contender]) -> dict[tuple[object, ...], Contender]:
    """Return the contenders that have to be built and timed: one for each different module.

    A baseline that is timed in its toolchain's Python session adds a second one: the same cover in
    our own module, which is what would be exported if it won.

    Returns:
        The contenders by key, in the order in which they were given; those that are known not to
        run are left out.
    """
    found: dict[tuple[object, ...], Contender] = {}
    for contender in contenders:
        if contender.reason is None:
            found.setdefault(contender.key, contender)
    for contender in contenders:
        if contender.reason is None and contender.python_session:
            twin = replace(contender, name=f"{contender.name} (artifact)", python_session=False)
            found.setdefault(twin.key, twin)
    return found


def name_of(winner: Contender, contenders: Sequence[Contender]) -> str:
    """Return the name that the user is told for the winner.

    Returns:
        The name of the baseline that has the same cover; ``collage`` where none has.
    """
    for contender in contenders:
        module = replace(contender, python_session=False)
        if contender.kind != "collage" and module.key == winner.key:
            return contender.name
    return "collage"


def paired_log_ratio(ours_us: Sequence[float], theirs_us: Sequence[float]) -> float:
    """Return the logarithm of the usual ratio of two contenders' times in the same rounds.

    Args:
        ours_us: Microseconds in each round; NaN where it took no part.
        theirs_us: The same of the other contender.

    Returns:
        The median over the rounds; NaN where there is no round of both.
    """
    return median_of(
        [math.log(ours / theirs) for ours, theirs in zip(ours_us, theirs_us, strict=False)]
    )


def joined(first: ProcessRounds, second: ProcessRounds) -> ProcessRounds:
    """Return both sets of rounds together, of the contenders that are in both."""
    return {one: [*first[one], *taken] for one, taken in second.items() if one in first}


def near(
    processes: Sequence[PlacementProcess],
    selection: ProcessRounds,
    settings: ConfirmationSettings,
) -> list[PlacementProcess]:
    """Return the contenders that may still win, the fastest first.

    Args:
        processes: All contenders.
        selection: The microseconds of each in the selection's rounds.
        settings: How much slower than the fastest such a contender may be, and how many of them are
            loaded again.

    Returns:
        At most ``most_reloaded`` contenders; none where only one may win, since nothing is then
        left to choose.
    """
    medians = {
        one: median_of(selection[one]) for one in processes if one.can_win and one in selection
    }
    timed = sorted(
        (one for one in medians if not math.isnan(medians[one])), key=medians.__getitem__
    )
    close = [one for one in timed if medians[one] <= medians[timed[0]] * settings.near_factor]
    return close[: settings.most_reloaded] if len(close) > 1 else []


def result_of(process: PlacementProcess, fresh: Sequence[float]) -> ContenderResult:
    """Return what was found out about the contender of a process.

    Args:
        process: The process that ran it, or in which it failed.
        fresh: The microseconds of its fresh rounds; none where it left early.
    """
    return ContenderResult(
        contender=process.contender,
        reason=process.failure,
        rounds_us=tuple(fresh),
        max_abs_error=process.max_abs_error,
        max_rel_error=process.max_rel_error,
        memory=process.memory,
        folder=process.folder,
        built=process.built,
    )
