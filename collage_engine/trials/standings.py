"""What the rounds of a race say: who leads, who is slower, who wins, and what each one takes.

Only times of common rounds are compared: the time that is told of a contender is the winner's time
in a fresh process, times the ratio of the two in common rounds; where they had none, the ratio to
whom it lost stands between.

Repeating a test while rounds are added makes a wrong dismissal about twice as likely as p says, as
the pruner of Optuna that works the same way states (``optuna.pruners.WilcoxonPruner``); a contender
therefore also has to be slower by 3 %. Where the memory of a process happens to lie makes another
10 % to 17 % (the same module, loaded again), so that everything within ``PROCESS_VARIATION`` of the
leader is timed in a second process before the winner is chosen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from collage_engine.machine.device import least_disturbed
from collage_engine.planning.search_inputs import RUNNERS_UP
from collage_engine.records.placement import PROCESS_SHARE, TIE_SHARE, LayerTime
from collage_engine.support.errors import InfeasibleError, ToolchainError
from collage_engine.trials.contender import COLLAGE, Contender, ContenderResult, ModuleKey, spread
from collage_engine.trials.objective import TrialSettings
from collage_engine.trials.placement_process import Module, PlacementProcess, TrialBench
from collage_engine.wording.sentences import NO_TURN

COMMON_ROUNDS = 6
"""Rounds that a contender has together with the leader before it may leave: the fewest with which
the signed-rank test can say p < 0.05 (2 of 64 orders of signs)."""
SIGNIFICANT = 0.05
"""Probability below which the signed-rank test counts; the usual one."""
TIE = 1 + TIE_SHARE
"""Times the fastest's time up to which a contender is as fast."""
SLOWER = 1 + 3 * TIE_SHARE
"""Times the leader's time from which on a contender leaves: three times as far from it as those
that are as fast."""
PROCESS_VARIATION = 1 + PROCESS_SHARE
"""Times the fastest's time up to which a contender may owe its time to its process: it is timed in
a second one before the winner is chosen."""
MOST_ROUNDS = 60
"""Rounds after which it ends in any case, with a tie of those that cannot be told apart: where the
standard deviation of single rounds is 6 %, that of the median of as many is 1 %, which is ``TIE``
(1.25 times 6 % over the root of 60)."""
ENOUGH_ROUNDS = MOST_ROUNDS // 3
"""Rounds after which the race ends once each that is left is known to be slower than the leader, or
within ``TIE`` of it: as many as say that where single rounds deviate by 3.5 %."""
UNKNOWN_ROUND_S = TrialSettings().rest_s + TrialSettings().warm_s + TrialSettings().round_s
"""Seconds for one contender's round, where none was seen yet: those of a model of short calls."""


@dataclass(eq=False)
class RaceEntry:
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
        layers: What its kernels and layers take, in the order in which they run; empty where that
            was not asked.
    """

    contender: Contender
    process: PlacementProcess
    rounds: dict[int, tuple[int, float]] = field(default_factory=dict)
    profiles: dict[int, list[float]] = field(default_factory=dict)
    loads: int = 0
    round_s: float = UNKNOWN_ROUND_S
    lost_to: RaceEntry | None = None
    behind: float = 1.0
    fresh_us: list[float] = field(default_factory=list)
    layers: tuple[LayerTime, ...] = ()

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
        fresh: Whether the winner was timed in a fresh process; else there was no time for it.
    """

    results: tuple[ContenderResult, ...]
    winner: ContenderResult
    tied: tuple[str, ...] = ()
    fresh: bool = False

    @property
    def in_model_us(self) -> dict[int, float]:
        """Return the microseconds of each partition of the winner; empty: it was not profiled."""
        built, layers = self.winner.built, self.winner.layers
        known = range(len(built.parts)) if built is not None and layers else ()
        return {k: sum(layer.us for layer in layers if layer.partition == k) for k in known}

    @property
    def named(self) -> str:
        """Return what the user hears: ``collage``, or the name of the baseline that won."""
        return COLLAGE if self.winner.contender.kind == COLLAGE else self.winner.contender.name

    @property
    def left_out(self) -> int:
        """Return how many contenders were not timed for want of time."""
        return sum(not result.reached for result in self.results)


class Standings:
    """The entries of a race with their rounds, and what follows from these.

    Attributes:
        leader: The fastest entry that may be exported; None: none ran yet.
        call_us: Microseconds of a user's call besides its partitions and what is between them: the
            copies of inputs and outputs, the same for all covers; None: it is not known.
    """

    def __init__(self) -> None:
        self.leader: RaceEntry | None = None
        self.call_us: float | None = None
        self._entries: dict[ModuleKey, RaceEntry] = {}
        self._named: list[Contender] = []

    # ------------------------------------------------------------------ entries

    def join(self, contenders: Iterable[Contender], bench: TrialBench) -> list[RaceEntry]:
        """Note contenders and their names; return an entry for each that is new.

        Args:
            contenders: One whose cover takes part already is another name of it; one with a reason
                is listed, not timed.
            bench: Makes the processes of the new ones.
        """
        new = []
        for contender in contenders:
            self._named.append(contender)
            if contender.reason is None and contender.key not in self._entries:
                entry = RaceEntry(contender, bench.process(contender))
                self._entries[contender.key] = entry
                new.append(entry)
        return new

    def drop(self, entry: RaceEntry) -> None:
        """Forget an entry whose turn did not come: it may enter later."""
        del self._entries[entry.contender.key]

    def forget(self, contender: Contender) -> RaceEntry | None:
        """Forget that a contender took part; return its entry, None where it has none."""
        self._named.remove(contender)
        return self._entries.pop(contender.key, None)

    def entry(self, contender: Contender) -> RaceEntry | None:
        """Return the entry of a contender's cover; None where it has none."""
        return self._entries.get(contender.key)

    @property
    def entries(self) -> list[RaceEntry]:
        """Return all entries, in the order in which they joined."""
        return list(self._entries.values())

    @property
    def present(self) -> list[RaceEntry]:
        """Return the entries that are loaded and timed in rounds."""
        return [entry for entry in self.entries if entry.takes_part]

    @property
    def modules(self) -> dict[ModuleKey, Module]:
        """Return the modules that were built, by the keys of their contenders."""
        return {
            entry.contender.key: (entry.process.folder, entry.process.built)
            for entry in self.entries
            if entry.process.folder is not None and entry.process.built is not None
        }

    # ------------------------------------------------------------------ comparisons

    def lead(self) -> None:
        """Find the leader: the fastest of those that may be exported, in common rounds."""
        if self.leader is not None and not self.leader.process.can_win:
            self.leader = None
        able = [entry for entry in self.present if entry.process.can_win and entry.rounds]
        if not able:
            return
        base = self.leader or min(able, key=lambda entry: entry.median_us)
        fastest = min(able, key=lambda entry: ratio(entry, base))
        self.leader = fastest if ratio(fastest, base) < 1.0 else base

    def behind(self, entry: RaceEntry) -> float:
        """Return times the leader's time that an entry takes; infinite where nothing is known."""
        us = self.time_us(entry)
        leader_us = None if self.leader is None else self.time_us(self.leader)
        return us / leader_us if us and leader_us else math.inf

    def is_slower(self, entry: RaceEntry) -> bool:
        """Tell whether an entry is clearly slower than the leader.

        One that was loaded again needs as many rounds in its new process before that is decided.
        """
        leader = self.leader
        if leader is None or entry is leader:
            return False
        rounds = sum(process == entry.loads for process, _ in entry.rounds.values())
        if rounds < COMMON_ROUNDS or ratio(entry, leader) < SLOWER:
            return False
        return are_told_apart(entry, leader)

    def is_settled(self, rounds: int) -> bool:
        """Tell whether more rounds than these would not change who wins."""
        able = [entry for entry in self.present if entry.process.can_win]
        if len(able) < 2 or rounds >= MOST_ROUNDS:
            return True
        return rounds >= ENOUGH_ROUNDS and all(map(self._is_decided, able))

    def _is_decided(self, entry: RaceEntry) -> bool:
        """Tell whether an entry is as fast as the leader, or slower beyond doubt."""
        if self.leader is None or entry is self.leader or self.behind(entry) <= TIE:
            return True
        return are_told_apart(entry, self.leader)

    def near(self) -> list[RaceEntry]:
        """Return those that may win after all in another process: the fastest few."""
        able = [entry for entry in self._able() if self.behind(entry) <= PROCESS_VARIATION]
        return sorted(able, key=self.behind)[: RUNNERS_UP + 1]

    def choose(self) -> RaceEntry:
        """Return the winner: of those that are as fast as the fastest, the fewest partitions win.

        Raises:
            ToolchainError: No placement could be built and run with right numbers.
            InfeasibleError: All that run take more memory than is allowed.
        """
        able = self._able()
        if self.leader not in able:  # it failed after its last round
            self.leader = min(able, key=lambda entry: self.time_us(entry) or math.inf)
            self.leader.lost_to = None
        behind = {entry: self.behind(entry) for entry in able}
        most = TIE * min(behind.values())
        tied = [entry for entry in able if behind[entry] <= most]
        return min(tied, key=lambda entry: (len(entry.contender.cover), behind[entry]))

    def _able(self) -> list[RaceEntry]:
        """Return the entries that were timed and may be exported, also those that have left.

        Raises:
            ToolchainError: No placement could be built and run with right numbers.
            InfeasibleError: All that run take more memory than is allowed.
        """
        able = [entry for entry in self.entries if entry.rounds and entry.process.can_win]
        if able:
            return able
        barred = [entry.process for entry in self.entries if entry.process.over_memory]
        if barred:
            reasons = "; ".join(
                f"{contender.contender.title}: {contender.over_memory}" for contender in barred
            )
            raise InfeasibleError(f"no placement keeps to the limit on memory ({reasons})")
        reasons = "; ".join(self.failures())
        raise ToolchainError(f"no placement could be built with right numbers ({reasons})")

    def failures(self) -> list[str]:
        """Return why placements failed, a sentence for each that did."""
        return [
            f"{entry.contender.title}: {entry.process.failure}"
            for entry in self.entries
            if entry.process.failure is not None
        ]

    def wrong_models(self) -> frozenset[str]:
        """Return the ids of the candidates that computed wrong numbers as whole models."""
        return frozenset(
            entry.contender.cover[0].id
            for entry in self.entries
            if len(entry.contender.cover) == 1
            and entry.process.failure is not None
            and entry.process.max_rel_error is not None
        )

    # ------------------------------------------------------------------ results

    def time_us(self, entry: RaceEntry) -> float | None:
        """Return what an entry takes, in microseconds; None where it was not timed.

        It is the fresh time of the winner, or what the leader takes in the median of its rounds;
        for any other, the ratio in common rounds with that one times its time.
        """
        if entry.fresh_us:
            return statistics.median(entry.fresh_us)
        base = next((other for other in self.entries if other.fresh_us), self.leader)
        if entry.lost_to is not None:
            base, times = entry.lost_to, entry.behind
        elif base is None or base is entry:
            return entry.median_us if entry.rounds else None
        else:
            times = ratio(entry, base)
        base_us = self.time_us(base)
        return None if base_us is None or math.isinf(times) else times * base_us

    def result(self, winner: RaceEntry) -> RaceResult:
        """Return how the race ended, without where the winner's time goes.

        Args:
            winner: What :meth:`choose` chose, timed in a fresh process or not.
        """
        results = self.results()
        ours = next(result for result in results if result.contender.key == winner.contender.key)
        return RaceResult(
            results=results,
            winner=ours,
            tied=tuple(
                result.contender.name
                for result in results
                if result is not ours
                and is_as_fast(self._entries.get(result.contender.key), winner)
            ),
            fresh=bool(winner.fresh_us),
        )

    def results(self) -> tuple[ContenderResult, ...]:
        """Return what came of the contenders: a result for each different cover.

        A baseline's name goes before that of a cover of the search.
        """
        names: dict[object, list[Contender]] = {}
        for contender in self._named:
            same = contender.key if contender.reason is None else contender.name
            names.setdefault(same, []).append(contender)
        results = []
        for contenders in names.values():
            first = next((one for one in contenders if one.kind != COLLAGE), contenders[0])
            others = dict.fromkeys(one.name for one in contenders if one.kind != COLLAGE)
            also = tuple(name for name in others if name != first.name)
            entry = None if first.reason is not None else self._entries.get(first.key)
            if entry is None:
                why, reached = first.reason or NO_TURN, first.reason is not None
                result = ContenderResult(contender=first, reason=why, reached=reached)
            else:
                shown = replace(first, barred=entry.process.contender.barred)
                result = replace(self.result_of(entry), contender=shown)
            results.append(replace(result, names=also))
        return tuple(results)

    def profiled(self) -> list[ContenderResult]:
        """Return the placements of several partitions that were profiled."""
        return [self.result_of(entry) for entry in self.entries if entry.profiles]

    def result_of(self, entry: RaceEntry) -> ContenderResult:
        """Return what was found out about an entry."""
        process, us = entry.process, self.time_us(entry)
        rounds = entry.fresh_us or [round_us for _, round_us in entry.rounds.values()]
        scale = us / statistics.median(rounds) if us is not None and rounds else math.nan
        partitions_us, between_us = self._partition_times(entry)
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
            layers=entry.layers,
        )

    def _partition_times(self, entry: RaceEntry) -> tuple[dict[str, float], float]:
        """Return microseconds by candidate of each partition, and of what is between them.

        They are divided by how much slower than usual the machine was in the round: by what the
        leader took in it, over what it takes in the median of all rounds. Of these profiles those
        count that other programs disturbed least.
        """
        process = entry.process
        built = None if process.failure is not None else process.built
        parts = [part.id for part in built.parts] if built is not None else []
        if len(parts) == 1:
            us = self.time_us(entry)
            return {} if us is None else {parts[0]: us}, 0.0
        if not parts or not entry.profiles:
            return {}, 0.0
        profiles = [
            [us / self._slowness(number) for us in profile]
            for number, profile in entry.profiles.items()
        ]
        kept = least_disturbed(profiles)
        *parts_us, between_us = map(statistics.median, zip(*kept, strict=True))
        return dict(zip(parts, parts_us, strict=True)), between_us

    def _slowness(self, number: int) -> float:
        """Return how many times its usual time the leader took in a round; 1 where not known."""
        leader = self.leader
        if leader is None or number not in leader.rounds:
            return 1.0
        return leader.rounds[number][1] / leader.median_us


def ratio(entry: RaceEntry, other: RaceEntry) -> float:
    """Return how many times another's time an entry takes, in their common rounds.

    It is the median of the rounds of two processes, and the geometric mean over pairs of
    processes; infinite where there is no common round.
    """
    logs: dict[tuple[int, int], list[float]] = {}
    for number in entry.rounds.keys() & other.rounds.keys():
        (first, ours), (second, theirs) = entry.rounds[number], other.rounds[number]
        logs.setdefault((first, second), []).append(math.log(ours / theirs))
    if not logs:
        return math.inf
    return math.exp(statistics.fmean(map(statistics.median, logs.values())))


def is_as_fast(entry: RaceEntry | None, winner: RaceEntry) -> bool:
    """Tell whether common rounds cannot tell an entry from the winner."""
    if entry is None or entry is winner or not entry.takes_part:
        return False
    times = ratio(entry, winner)
    if 1 / TIE <= times <= TIE:
        return True
    ratios = common_ratios(entry, winner)
    if not ratios or are_told_apart(entry, winner):
        return False
    low, high = spread(ratios)
    return 1 / SLOWER < times < SLOWER or low <= 1.0 <= high


def common_ratios(entry: RaceEntry, other: RaceEntry) -> list[float]:
    """Return how many times another's time an entry took, by the rounds that both took part in."""
    numbers = sorted(entry.rounds.keys() & other.rounds.keys())
    return [entry.rounds[k][1] / other.rounds[k][1] for k in numbers]


def are_told_apart(entry: RaceEntry, other: RaceEntry) -> bool:
    """Tell whether the common rounds of two equal placements would hardly be so far apart.

    This is Wilcoxon's signed-rank test on the logarithms of the times.
    """
    from scipy.stats import wilcoxon  # takes half a second to import

    logs = [math.log(times) for times in common_ratios(entry, other)]
    if len(logs) < COMMON_ROUNDS or not any(logs):
        return False
    return bool(wilcoxon(logs).pvalue < SIGNIFICANT)
