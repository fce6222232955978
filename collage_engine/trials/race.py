"""The race: the only thing that builds and times whole placements.

Contenders enter in order of promise. Each is built into a module, loaded in a process of its own,
checked against the true values, and timed in rounds: in a round everybody who is loaded runs once,
in a new random order, while the others sleep, so that a slow stretch of the machine falls on all of
them. From the sixth common round on, whoever is slower than the leader by 3 % with p < 0.05
(Wilcoxon's signed-rank test over the paired rounds) leaves. Contenders with equal covers are one
entrant, which goes by all of their names.

Whole models, mixes, covers of the search and of calibration, and the last rounds are calls of the
same race. Whoever enters late is timed beside the leader, which is always loaded. Only times of
common rounds are compared: the time that is told of a contender is the winner's time in a fresh
process, times the ratio of the two in common rounds; where they had none, the ratio to whom it lost
stands between.

Repeating a test while rounds are added makes a wrong dismissal about twice as likely as p says, as
the pruner of Optuna that works the same way states (``optuna.pruners.WilcoxonPruner``); the 3 %
stand beside it for that reason. Where the memory of a process happens to lie makes another 10 % to
17 % (the same module, loaded again), so that whoever is within ``LUCK`` of the leader is timed in a
second process before the winner is chosen.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from collage_engine.machine.cgroups import available_bytes
from collage_engine.machine.worker import WorkerError
from collage_engine.planning.search_problem import RUNNERS_UP
from collage_engine.records.counted import counted
from collage_engine.records.errors import InfeasibleError, ToolchainError
from collage_engine.records.flag import Flag
from collage_engine.records.placement import TIE_SHARE
from collage_engine.records.time_limits import SHORTEST_RUN_S, STEP_SHARE
from collage_engine.trials.contender import COLLAGE, Contender, ContenderResult
from collage_engine.trials.placement_process import PlacementProcess
from collage_engine.trials.runner import Module, TrialRunner
from collage_engine.trials.trial_job import KernelTime

COMMON_ROUNDS = 6
"""Rounds that a contender has together with the leader before it may leave: the fewest with which
the signed-rank test can say p < 0.05 (2 of 64 orders of signs)."""
SLOWER = 1.03
"""Times the leader's time from which on a contender leaves; chosen."""
SIGNIFICANT = 0.05
"""Probability below which the signed-rank test counts; the usual one."""
TIE = 1 + TIE_SHARE
"""Times the fastest's time up to which a contender is as fast."""
LUCK = 1.1
"""Times the fastest's time up to which a contender may have had bad luck with its process: it is
timed in a second one before the winner is chosen. The same module takes up to 10 % to 17 % more in
some processes; chosen at the lower end, since few have so bad luck."""
ENOUGH_ROUNDS = 20
"""Rounds after which the race ends once each that is left is known to be slower than the leader, or
within ``TIE`` of it; chosen."""
MOST_ROUNDS = 60
"""Rounds after which it ends in any case, with a tie of those that cannot be told apart: where the
standard deviation of single rounds is 6 %, that of the median of as many is 1 %, which is ``TIE``
(1.25 times 6 % over the root of 60)."""
SETTLE_S = 3.0
"""Seconds after which contenders that have just entered wait with their further rounds for the
others to enter, too: slow models would take the time of those; chosen."""
RUNS_PER_PROFILE = 3
"""Runs of a contender of several partitions that are profiled after each of its first rounds, of
which there are ``COMMON_ROUNDS``; chosen."""
UNKNOWN_BUILD_S, UNKNOWN_LOAD_S, UNKNOWN_ROUND_S = 8.0, 3.0, 0.06
"""Seconds for a build, for loading, and for one contender's round, where none was seen yet; chosen,
from models of a hundred operators."""
PROCESS_BYTES, WEIGHTS_FACTOR, MEMORY_SHARE = 250e6, 4.0, 0.6
"""Bytes of a process without weights, how often it holds these, and the share of the free memory
that contenders may take; chosen, above what any toolchain was seen to take."""
LEAST_LOADED = 4
"""Contenders that may be loaded at a time, whatever memory seems to hold; chosen."""

NO_TURN = "the run ended before its turn came"
"""The reason of a contender that the run had no time for."""

OnProgress = Callable[[int, int, str], None]
"""Takes the steps done, the steps in all, and a few words on what is at work."""


def _silent(done: int, total: int, now: str) -> None:
    """Report no progress."""


@dataclass(eq=False)
class Entrant:
    """A module that takes part in the race.

    Attributes:
        contender: The first contender with this cover.
        process: Its process, loaded as long as it takes part.
        rounds: Number of the process and microseconds, by number of the round.
        profiles: Microseconds of every partition and of what is between them, by round.
        loads: Processes that it has been loaded in.
        round_s: Seconds that its last round took.
        lost_to: The leader when it left; None: it did not leave.
        behind: Times that leader's time that it took in their common rounds.
        fresh_us: Microseconds of the winner's rounds in its fresh process.
    """

    contender: Contender
    process: PlacementProcess
    rounds: dict[int, tuple[int, float]] = field(default_factory=dict)
    profiles: dict[int, list[float]] = field(default_factory=dict)
    loads: int = 0
    round_s: float = UNKNOWN_ROUND_S
    lost_to: Entrant | None = None
    behind: float = 1.0
    fresh_us: list[float] = field(default_factory=list)

    @property
    def takes_part(self) -> bool:
        """Tell whether it is loaded and timed in rounds."""
        return self.process.failure is None and self.process.loaded and self.lost_to is None

    @property
    def median_us(self) -> float:
        """Return the median of its own rounds; NaN where it has none."""
        return statistics.median(us for _, us in self.rounds.values()) if self.rounds else math.nan


@dataclass(frozen=True, kw_only=True)
class RaceResult:
    """How the race ended.

    Attributes:
        results: One for each different cover, in the order in which they were named.
        winner: What is exported.
        tied: Names of contenders that are as fast, as far as the common rounds can tell.
        in_model_us: Microseconds of each partition of the winner, in execution order; empty where
            it was not profiled.
        residual: The winner's kernels outside every partition.
        fresh: Whether the winner was timed in a fresh process; else there was no time for it.
    """

    results: tuple[ContenderResult, ...]
    winner: ContenderResult
    tied: tuple[str, ...] = ()
    in_model_us: tuple[float, ...] = ()
    residual: tuple[KernelTime, ...] = ()
    fresh: bool = False

    @property
    def named(self) -> str:
        """Return what the user hears: ``collage``, or the name of the baseline that won."""
        return COLLAGE if self.winner.contender.kind == COLLAGE else self.winner.contender.name

    @property
    def left_out(self) -> int:
        """Return how many contenders were not timed for want of time."""
        return sum(not one.reached for one in self.results)


class Race:
    """Builds and times whole placements; closing it ends their processes.

    Attributes:
        runner: Builds placements and runs them in processes.
        leader: The fastest contender that may be exported; None: none ran yet.
        ends_at: When the race is to be over, on the clock.
    """

    def __init__(
        self,
        runner: TrialRunner,
        ends_at: float = math.inf,
        *,
        keep: Flag | None = None,
        on_answer: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        """Prepare; nobody takes part yet.

        Args:
            runner: Builds placements and runs them in processes; the race closes it.
            ends_at: When the race is to be over, on the clock. It goes on until there is an answer.
            keep: Set when the race is to end soon and to keep its leader.
            on_answer: Is called when there is a first answer, and when there is a faster one.
            clock: Returns the time now, in seconds.
            seed: Of the orders in which contenders run; None: any.
        """
        self.runner = runner
        self.leader: Entrant | None = None
        self.ends_at = ends_at
        self._keep = keep
        self._on_answer = on_answer
        self._answered: Entrant | None = None
        self._clock = clock
        self._random = random.Random(seed)
        self._entrants: dict[tuple[object, ...], Entrant] = {}
        self._named: list[Contender] = []
        self._round = 0

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process; modules stay."""
        self.runner.close()

    def end_builders(self) -> None:
        """End the workers that build, which hold the model; later builds start anew."""
        self.runner.end_builders()

    # ------------------------------------------------------------------ time

    @property
    def time_left(self) -> float:
        """Return the seconds until the race is to be over; 0 once the user keeps what there is."""
        if self._keep is not None and self._keep.is_set():
            return 0.0
        return max(0.0, self.ends_at - self._clock())

    @property
    def seconds_to_finish(self) -> float:
        """Return what one more cover and the last steps take, by the builds and loads so far.

        It is at most a third of the time that is left: on a busy machine builds and loads take long
        beside a short budget, and what they are kept for has to be found first.
        """
        last_s = 0.0 if self.leader is None else self._last_steps_s
        return min(self.seconds_to_enter() + last_s, self.time_left / 3)

    @property
    def seconds_to_improve(self) -> float:
        """Return the seconds that may be spent on finding better placements."""
        return self.time_left - self.seconds_to_finish

    @property
    def seconds_for_step(self) -> float:
        """Return the seconds that one step may spend on that: half of them.

        It gets no less than is worth beginning with; 0 where even all of them are less.
        """
        if self.seconds_to_improve < SHORTEST_RUN_S:
            return 0.0
        return max(SHORTEST_RUN_S, STEP_SHARE * self.seconds_to_improve)

    def seconds_to_enter(self, contenders: Sequence[Contender] = ()) -> float:
        """Return what building, loading and timing contenders at once takes.

        A build takes as long as the longest seen of the same toolchains, else as the longest.

        Args:
            contenders: What is to enter; none: a mix of any toolchains.
        """
        seen = [one.process for one in self._entrants.values() if one.process.build_s > 0]
        build_s = 0.0 if contenders else _longest(seen)
        for one in contenders:
            if one.key not in self.modules:
                wanted = {part.instance.toolchain for part in one.cover}
                alike = [process for process in seen if wanted == set(process.toolchains)]
                build_s = max(build_s, _longest(alike or seen))
        rounds_s = min(SETTLE_S, COMMON_ROUNDS * (self._round_s + UNKNOWN_ROUND_S))
        return build_s + self._load_s + rounds_s

    def has_time(self, ends_at: float, contenders: Sequence[Contender] = ()) -> bool:
        """Tell whether contenders are likely to be timed by then.

        Of the last steps only what they are known to take is kept back: what enters may win, and is
        cut off where it takes longer than builds and loads have taken so far.

        Args:
            ends_at: When they are to be timed, on the clock, besides the race's own end.
            contenders: What is to enter; none: a mix of any toolchains.
        """
        kept_s = self._load_s + self._fresh_rounds_s
        left_s = min(self.time_left - kept_s, ends_at - self._clock())
        return left_s > self.seconds_to_enter(contenders)

    @property
    def _load_s(self) -> float:
        """Return the seconds for loading and checking a placement."""
        seen = [one.process.load_s for one in self._entrants.values() if one.process.load_s > 0]
        return statistics.median(seen) if seen else UNKNOWN_LOAD_S

    @property
    def _round_s(self) -> float:
        """Return the seconds of one round of all that take part."""
        return sum(one.round_s for one in self.present) or UNKNOWN_ROUND_S

    @property
    def modules(self) -> dict[tuple[object, ...], Module]:
        """Return the modules that were built, by the keys of their contenders."""
        return {
            one.contender.key: (one.process.folder, one.process.built)
            for one in self._entrants.values()
            if one.process.folder is not None and one.process.built is not None
        }

    @property
    def _last_steps_s(self) -> float:
        """Return the seconds kept for timing and profiling the winner in a fresh process.

        Twice what loading took: a step that was begun before may take longer than was predicted.
        """
        return 2 * self._load_s + self._fresh_rounds_s

    @property
    def _fresh_rounds_s(self) -> float:
        """Return the seconds of the winner's fresh rounds."""
        round_s = self.leader.round_s if self.leader is not None else UNKNOWN_ROUND_S
        return 2 * COMMON_ROUNDS * round_s

    def _is_over(self, ends_at: float) -> bool:
        """Tell whether the time is over for everything but the last steps."""
        return self.time_left <= self._last_steps_s or self._clock() >= ends_at

    # ------------------------------------------------------------------ entering

    @property
    def present(self) -> list[Entrant]:
        """Return everybody who is loaded and timed in rounds."""
        return [one for one in self._entrants.values() if one.takes_part]

    def enter(
        self,
        contenders: Sequence[Contender],
        *,
        ends_at: float = math.inf,
        on_progress: OnProgress = _silent,
    ) -> None:
        """Build, check, load and time contenders, in their order, as long as there is time.

        Without an answer so far, the time for it does not count: contenders enter until one of them
        runs with right numbers.

        Args:
            contenders: The contenders, the most promising first. One whose cover takes part already
                is another name of it.
            ends_at: When the entering is to be over, on the clock, besides the race's own end.
            on_progress: Is called before each step.

        Raises:
            Cancelled: The user stopped it.
            ModelError: The model's file has changed.
        """
        waiting = self._join(contenders)
        total = len(waiting)
        at_once = self.runner.bench.settings.at_once
        while waiting:
            batch = waiting[:at_once]
            entering = [entrant.contender for entrant in batch]
            if self.leader is not None and not self.has_time(ends_at, entering):
                break
            waiting = waiting[at_once:]

            names = " and ".join(one.title for one in entering)
            tell = partial(on_progress, total - len(batch) - len(waiting), total)
            missed = self._enter_together(batch, ends_at, names, tell)
            waiting = [*missed, *waiting]
        for entrant in waiting:  # it may enter later, when there is more time
            del self._entrants[entrant.contender.key]

    def _join(self, contenders: Iterable[Contender]) -> list[Entrant]:
        """Note contenders and their names; return an entrant for each that is new."""
        new = []
        for contender in contenders:
            self._named.append(contender)
            if contender.reason is None and contender.key not in self._entrants:
                entrant = Entrant(contender, self.runner.process(contender))
                self._entrants[contender.key] = entrant
                new.append(entrant)
        return new

    def _enter_together(
        self, batch: Sequence[Entrant], ends_at: float, names: str, tell: Callable[[str], None]
    ) -> list[Entrant]:
        """Build, load and time some contenders; return those that there was no time for."""
        processes = [one.process for one in batch]

        def is_over(can_end: Callable[[PlacementProcess], bool]) -> bool:
            some = self.leader is not None or any(map(can_end, processes))
            return some and self._is_over(ends_at)

        tell(f"building {names}")
        missed = self.runner.build(processes, lambda: is_over(lambda one: one.folder is not None))
        built = [one for one in processes if one not in missed and one.failure is None]
        self._make_room(len(built))
        tell(f"checking {names}")
        missed += self.runner.load(
            built, lambda: is_over(lambda one: one.load_s > 0 and one.can_win)
        )
        new = [one for one in batch if one.takes_part]
        for entrant in new:
            entrant.loads += 1
        if new:
            tell(f"timing {names}")
            self._settle(new, ends_at)
        return [one for one in batch if one.process in missed]

    def _settle(self, new: Sequence[Entrant], ends_at: float) -> None:
        """Run rounds until those that are new have had as many as it takes to leave."""
        until = self._clock() + SETTLE_S
        while any(one.takes_part and len(one.rounds) < COMMON_ROUNDS for one in new):
            self.round()
            if self._is_over(ends_at) or self._clock() >= until:
                break
        self._announce()

    def _make_room(self, count: int) -> None:
        """Have the slowest leave where so many more would take too much memory."""
        weights_bytes = self.runner.bench.model.record.weights_bytes
        most = most_loaded(weights_bytes, len(self.present))
        others = sorted((one for one in self.present if one is not self.leader), key=self._behind)
        while others and len(others) + 1 + count > most:
            self._leave(others.pop())

    # ------------------------------------------------------------------ rounds

    def round(self) -> None:
        """Time everybody who is loaded once, in a new random order; the clearly slower leave.

        Raises:
            Cancelled: The user stopped it.
        """
        self._round += 1
        present = self.present
        for entrant in self._random.sample(present, len(present)):
            if self.leader is not None and entrant.rounds and entrant.round_s > self.time_left:
                continue
            began = self._clock()
            calls = entrant.process.timed_round()
            entrant.round_s = self._clock() - began
            if calls is None:
                entrant.process.close()
                continue
            entrant.rounds[self._round] = (entrant.loads, statistics.median(calls))
            if len(entrant.contender.cover) > 1 and len(entrant.profiles) < COMMON_ROUNDS:
                self._profile(entrant)
        self._lead()
        for entrant in self.present:
            if entrant is not self.leader and self._is_slower(entrant):
                self._leave(entrant)

    def _profile(self, entrant: Entrant) -> None:
        """Note what each partition takes, and what is between them; what was timed stands."""
        with contextlib.suppress(WorkerError, ToolchainError):
            taken, outside = entrant.process.partition_times(RUNS_PER_PROFILE)
            entrant.profiles[self._round] = [*taken, sum(kernel.us for kernel in outside)]

    def _lead(self) -> None:
        """Find the leader: the fastest of those that may be exported, in common rounds."""
        if self.leader is not None and not self.leader.process.can_win:
            self.leader = None
        able = [one for one in self.present if one.process.can_win and one.rounds]
        if not able:
            return
        base = self.leader or min(able, key=lambda one: one.median_us)
        fastest = min(able, key=lambda one: _or_infinite(self.ratio(one, base)))
        self.leader = fastest if self.ratio(fastest, base) < 1.0 else base

    def _announce(self) -> None:
        """Tell of the leader, where it is another one than before."""
        if self.leader is not None and self.leader is not self._answered:
            self._answered = self.leader
            self._on_answer()

    def ratio(self, one: Entrant, other: Entrant) -> float:
        """Return how many times another's time an entrant takes, in their common rounds.

        It is the median of the rounds of two processes, and the geometric mean over pairs of
        processes; NaN where there is no common round.
        """
        logs: dict[tuple[int, int], list[float]] = {}
        for number in one.rounds.keys() & other.rounds.keys():
            (first, ours), (second, theirs) = one.rounds[number], other.rounds[number]
            logs.setdefault((first, second), []).append(math.log(ours / theirs))
        if not logs:
            return math.nan
        return math.exp(statistics.fmean(map(statistics.median, logs.values())))

    def _behind(self, entrant: Entrant) -> float:
        """Return times the leader's time that an entrant takes; infinite where nothing is known."""
        us = self.time_us(entrant)
        leader_us = None if self.leader is None else self.time_us(self.leader)
        return us / leader_us if us and leader_us else math.inf

    def _is_slower(self, entrant: Entrant) -> bool:
        """Tell whether an entrant is clearly slower than the leader.

        One that was loaded again is heard for as many rounds in its new process.
        """
        leader = self.leader
        if leader is None:
            return False
        ours, theirs = paired(entrant, leader)
        here = sum(process == entrant.loads for process, _ in entrant.rounds.values())
        if min(here, len(ours)) < COMMON_ROUNDS or self.ratio(entrant, leader) < SLOWER:
            return False
        return signed_rank(ours, theirs) < SIGNIFICANT

    def _leave(self, entrant: Entrant) -> None:
        """End an entrant's part in the race; its ratio to the leader is what is known of it.

        Modules of placements that are too slow for bad luck are removed: each is as large as the
        model.
        """
        assert self.leader is not None
        entrant.behind = _or_infinite(self.ratio(entrant, self.leader))
        entrant.lost_to = self.leader
        self._ask_memory(entrant)
        if entrant.contender.kind == "collage" and entrant.behind > LUCK:
            entrant.process.discard()
        else:
            entrant.process.close()

    # ------------------------------------------------------------------ what proposers learn from

    def try_cover(self, contender: Contender, *, ends_at: float = math.inf) -> ContenderResult:
        """Have a placement enter, and return what came of it.

        Args:
            contender: The placement.
            ends_at: When that is to be over, on the clock.

        Raises:
            Cancelled: The user stopped it.
        """
        self.enter([contender], ends_at=ends_at)
        entrant = self._entrants.get(contender.key)
        if entrant is None:
            self._named.remove(contender)
            return ContenderResult(contender=contender, reason=NO_TURN, reached=False)
        return self.result_of(entrant)

    def time_apart(self, contenders: Sequence[Contender], *, ends_at: float) -> dict[str, float]:
        """Time placements that are no contenders of this race; they do not stay.

        Args:
            contenders: The placements, which may not win.
            ends_at: When that is to be over, on the clock.

        Returns:
            Microseconds by the names of the contenders; those that were not reached have none.

        Raises:
            Cancelled: The user stopped it.
        """
        self.enter(contenders, ends_at=ends_at)
        found = {}
        for one in contenders:
            self._named.remove(one)
            entrant = self._entrants.pop(one.key, None)
            us = None if entrant is None else self.time_us(entrant)
            if entrant is not None:
                entrant.process.close()
            if us is not None:
                found[one.name] = us
        return found

    def _partition_times(self, entrant: Entrant) -> tuple[dict[str, float], float]:
        """Return microseconds by candidate of each partition, and of what is between them.

        They are divided by how much slower than usual the machine was in the round: by what the
        leader took in it, over what it takes in the median of all rounds.
        """
        process = entrant.process
        built = None if process.failure is not None else process.built
        parts = [part.id for part in built.parts] if built is not None else []
        if len(parts) == 1:
            us = self.time_us(entrant)
            return {} if us is None else {parts[0]: us}, 0.0
        if not parts or not entrant.profiles:
            return {}, 0.0
        profiles = [
            [us / self._slowness(number) for us in taken]
            for number, taken in entrant.profiles.items()
        ]
        *taken, between = map(statistics.median, zip(*profiles, strict=True))
        return dict(zip(parts, taken, strict=True)), between

    def _slowness(self, number: int) -> float:
        """Return how many times its usual time the leader took in a round; 1 where not known."""
        leader = self.leader
        if leader is None or number not in leader.rounds:
            return 1.0
        return leader.rounds[number][1] / leader.median_us

    def profiled(self) -> list[ContenderResult]:
        """Return the placements of several partitions that were profiled."""
        return [self.result_of(one) for one in self._entrants.values() if one.profiles]

    # ------------------------------------------------------------------ the end

    def finish(self, on_progress: OnProgress = _silent) -> RaceResult:
        """Choose the winner and time it afresh, as far as there is time.

        Args:
            on_progress: Is called before each step.

        Raises:
            ToolchainError: No placement could be built and run with right numbers.
            InfeasibleError: All that run take more memory than is allowed.
            Cancelled: The user stopped it.
        """
        self.end_builders()
        self._last_rounds(on_progress)
        near = self._near()
        needs = COMMON_ROUNDS * sum(one.round_s for one in near) + self._last_steps_s
        needs += self._load_s * math.ceil(len(near) / self.runner.bench.settings.at_once)
        # Where one is loaded at a time, each round was in a process of its own already.
        if len(near) > 1 and not self.runner.bench.one_loaded and needs < self.time_left:
            self._load_again(near)
            self._last_rounds(on_progress)
        winner = self._choose()
        while winner.process.load_s + self._fresh_rounds_s < self.time_left:
            on_progress(1, 1, f"timing {winner.contender.title}")
            if self._time_afresh(winner):
                break
            winner = self._choose()
        in_model, residual = self._where_time_goes(winner) if winner.fresh_us else ([], [])
        results = self.results()
        ours = next(one for one in results if one.contender.key == winner.contender.key)
        return RaceResult(
            results=results,
            winner=replace(self.result_of(winner), contender=ours.contender, names=ours.names),
            tied=tuple(
                one.contender.name
                for one in results
                if one is not ours
                and self._is_as_fast(self._entrants.get(one.contender.key), winner)
            ),
            in_model_us=tuple(in_model),
            residual=tuple(residual),
            fresh=bool(winner.fresh_us),
        )

    def _last_rounds(self, on_progress: OnProgress) -> None:
        """Run rounds until the order is settled, or only the last steps have time left."""
        first = self._round
        while self.leader is not None and not self._is_settled(self._round - first):
            if self._last_steps_s + self._round_s >= self.time_left:
                return
            done = self._round - first
            total = max(ENOUGH_ROUNDS, done + 1)
            racing = counted(len(self.present), "contender")
            now = f"round {done + 1} of {total}, {racing}"
            on_progress(done, total, now)
            self.round()

    def _is_settled(self, rounds: int) -> bool:
        """Tell whether more rounds would not change who wins."""
        able = [one for one in self.present if one.process.can_win]
        if len(able) < 2 or rounds >= MOST_ROUNDS:
            return True
        return rounds >= ENOUGH_ROUNDS and all(map(self._is_decided, able))

    def _is_decided(self, entrant: Entrant) -> bool:
        """Tell whether an entrant is as fast as the leader, or slower beyond doubt."""
        if self.leader is None or entrant is self.leader or self._behind(entrant) <= TIE:
            return True
        ours, theirs = paired(entrant, self.leader)
        return len(ours) >= COMMON_ROUNDS and signed_rank(ours, theirs) < SIGNIFICANT

    def _near(self) -> list[Entrant]:
        """Return those that may win after all in another process: the fastest few."""
        able = [one for one in self._able() if self._behind(one) <= LUCK]
        return sorted(able, key=self._behind)[: RUNNERS_UP + 1]

    def _able(self) -> list[Entrant]:
        """Return everybody that was timed and may be exported, whether it still takes part or not.

        Raises:
            ToolchainError: No placement could be built and run with right numbers.
            InfeasibleError: All that run take more memory than is allowed.
        """
        able = [one for one in self._entrants.values() if one.rounds and one.process.can_win]
        if able:
            return able
        barred = [one.process for one in self._entrants.values() if one.process.over_memory]
        if barred:
            reasons = "; ".join(f"{one.contender.title}: {one.over_memory}" for one in barred)
            raise InfeasibleError(f"no placement keeps to the limit on memory ({reasons})")
        reasons = "; ".join(self.failures())
        raise ToolchainError(f"no placement could be built with right numbers ({reasons})")

    def failures(self) -> list[str]:
        """Return why placements failed, a sentence for each that did."""
        return [
            f"{one.contender.title}: {one.process.failure}"
            for one in self._entrants.values()
            if one.process.failure is not None
        ]

    def _load_again(self, entrants: Sequence[Entrant]) -> None:
        """Load entrants in other processes, also those that have left."""
        for entrant in entrants:
            entrant.lost_to = None
            entrant.loads += 1
        self.runner.load([one.process for one in entrants])

    def _choose(self) -> Entrant:
        """Return the winner: of those that are as fast as the fastest, the fewest partitions win.

        Raises:
            ToolchainError: No placement could be built and run with right numbers.
            InfeasibleError: All that run take more memory than is allowed.
        """
        able = self._able()
        if self.leader not in able:  # it failed after its last round
            self.leader = min(able, key=lambda one: self.time_us(one) or math.inf)
            self.leader.lost_to = None
        behind = {one: self._behind(one) for one in able}
        most = TIE * min(behind.values())
        tied = [one for one in able if behind[one] <= most]
        return min(tied, key=lambda one: (len(one.contender.cover), behind[one]))

    def _is_as_fast(self, one: Entrant | None, winner: Entrant) -> bool:
        """Tell whether common rounds do not tell an entrant from the winner."""
        if one is None or one is winner or not one.takes_part:
            return False
        ratio = self.ratio(one, winner)
        if 1 / TIE <= ratio <= TIE:
            return True
        ours, theirs = paired(one, winner)
        is_near = 1 / SLOWER < ratio < SLOWER
        return is_near and bool(ours) and signed_rank(ours, theirs) >= SIGNIFICANT

    def _time_afresh(self, winner: Entrant) -> bool:
        """Time the winner in a new process; return whether it ran."""
        for entrant in self.present:
            self._ask_memory(entrant)
        winner.process.reload()
        while winner.process.failure is None and len(winner.fresh_us) < 2 * COMMON_ROUNDS:
            if winner.fresh_us and winner.round_s > self.time_left:
                break
            calls = winner.process.timed_round()
            if calls is not None:
                winner.fresh_us.append(statistics.median(calls))
        if winner.process.failure is not None:
            winner.fresh_us.clear()
        return bool(winner.fresh_us)

    def _where_time_goes(self, winner: Entrant) -> tuple[list[float], list[KernelTime]]:
        """Return the winner's microseconds by partition, and its kernels outside of these."""
        self._ask_memory(winner)
        with contextlib.suppress(WorkerError, ToolchainError):
            if winner.process.built is not None:
                taken, outside = winner.process.partition_times(COMMON_ROUNDS * RUNS_PER_PROFILE)
                if any(taken) or outside:
                    return taken, outside
        return [], []  # what was timed stands; where in it the time goes is not known

    @staticmethod
    def _ask_memory(entrant: Entrant) -> None:
        """Note how much memory an entrant's process has taken, where it still answers."""
        with contextlib.suppress(WorkerError, ToolchainError):
            entrant.process.ask_memory()

    # ------------------------------------------------------------------ what is told

    def time_us(self, entrant: Entrant) -> float | None:
        """Return what an entrant takes, in microseconds; None where it was not timed.

        It is the fresh time of the winner, or what the leader takes in the median of its rounds;
        for everybody else, the ratio in common rounds with that one times its time.
        """
        if entrant.fresh_us:
            return statistics.median(entrant.fresh_us)
        base = next((one for one in self._entrants.values() if one.fresh_us), self.leader)
        if entrant.lost_to is not None:
            base, ratio = entrant.lost_to, entrant.behind
        elif base is None or base is entrant:
            return entrant.median_us if entrant.rounds else None
        else:
            ratio = self.ratio(entrant, base)
        base_us = self.time_us(base)
        return None if base_us is None or math.isnan(ratio) else ratio * base_us

    def results(self) -> tuple[ContenderResult, ...]:
        """Return what came of the contenders: a result for each different cover.

        A baseline's name goes before that of a cover of the search.
        """
        names: dict[object, list[Contender]] = {}
        for contender in self._named:
            same = contender.key if contender.reason is None else contender.name
            names.setdefault(same, []).append(contender)
        found = []
        for contenders in names.values():
            first = next((one for one in contenders if one.kind != "collage"), contenders[0])
            others = dict.fromkeys(one.name for one in contenders if one.kind != "collage")
            also = tuple(name for name in others if name != first.name)
            entrant = None if first.reason is not None else self._entrants.get(first.key)
            if entrant is not None:
                shown = replace(first, barred=entrant.process.contender.barred)
                found.append(replace(self.result_of(entrant), contender=shown, names=also))
                continue
            reached = first.reason is not None
            why = first.reason or NO_TURN
            found.append(ContenderResult(contender=first, names=also, reason=why, reached=reached))
        return tuple(found)

    def result_of(self, entrant: Entrant) -> ContenderResult:
        """Return what was found out about an entrant."""
        process, us = entrant.process, self.time_us(entrant)
        rounds = entrant.fresh_us or [us for _, us in entrant.rounds.values()]
        scale = us / statistics.median(rounds) if us is not None and rounds else math.nan
        partitions_us, between_us = self._partition_times(entrant)
        return ContenderResult(
            contender=process.contender,
            reason=process.failure,
            rounds_us=() if math.isnan(scale) else tuple(one * scale for one in rounds),
            max_abs_error=process.max_abs_error,
            max_rel_error=process.max_rel_error,
            memory=process.memory,
            over_memory=process.over_memory is not None,
            folder=process.folder,
            built=process.built,
            partitions_us=partitions_us,
            between_us=between_us,
        )


def most_loaded(weights_bytes: int, held: int) -> int:
    """Return how many contenders may be loaded at a time.

    Args:
        weights_bytes: Bytes of the model's weights.
        held: How many are loaded now, which the free memory holds already.
    """
    each = PROCESS_BYTES + WEIGHTS_FACTOR * weights_bytes
    most = held + int(available_bytes() * MEMORY_SHARE / each)
    return max(LEAST_LOADED, most)


def paired(one: Entrant, other: Entrant) -> tuple[list[float], list[float]]:
    """Return the microseconds of two entrants in the rounds that both took part in."""
    numbers = sorted(one.rounds.keys() & other.rounds.keys())
    return [one.rounds[k][1] for k in numbers], [other.rounds[k][1] for k in numbers]


def signed_rank(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return how likely paired times are as far apart as these for equal placements.

    This is Wilcoxon's signed-rank test on the logarithms of the times.
    """
    from scipy.stats import wilcoxon  # takes half a second to import

    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    return float(wilcoxon(logs).pvalue) if any(logs) else 1.0


def _longest(processes: Sequence[PlacementProcess]) -> float:
    """Return the seconds of the longest of some builds, or what a build is taken to be."""
    return max((one.build_s for one in processes), default=UNKNOWN_BUILD_S)


def _or_infinite(value: float) -> float:
    """Return a number, and infinity for NaN."""
    return math.inf if math.isnan(value) else value
