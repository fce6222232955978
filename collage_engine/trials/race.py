"""The race: the only thing that builds and times whole placements.

Contenders enter in order of promise. Each is built into a module, loaded in a process of its own,
checked against the true values, and timed in rounds: in a round everything that is loaded runs
once, in a new random order, while the others sleep, so that a slow stretch of the machine falls on
all of them. From the sixth common round on, a contender that is slower than the leader by 3 % with
p < 0.05 (Wilcoxon's signed-rank test over the paired rounds) leaves. Contenders with equal covers
are one entry, which goes by all of their names.

Whole models, mixes, covers of the search and of calibration, and the last rounds are calls of the
same race. What enters late is timed together with the leader, which is always loaded.
``trials/standings.py`` has what follows from the rounds, ``trials/race_clock.py`` the time.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from collage_engine.lowering.stopwatch import KernelTime
from collage_engine.machine.device import available_bytes
from collage_engine.machine.worker import WorkerError
from collage_engine.planning.search_inputs import RUNNERS_UP
from collage_engine.records.placement import LayerTime
from collage_engine.support.errors import ToolchainError
from collage_engine.support.text import counted
from collage_engine.support.time_limits import LEAST_S, SHORTEST_RUN_S, STEP_SHARE, Flag
from collage_engine.trials.contender import COLLAGE, Contender, ContenderResult
from collage_engine.trials.layer_times import layer_times, wants_layers
from collage_engine.trials.placement_process import TrialBench
from collage_engine.trials.race_clock import (
    RUNS_PER_PROFILE,
    SETTLE_S,
    RaceClock,
    layers_s,
    runs_of_layers,
)
from collage_engine.trials.standings import (
    COMMON_ROUNDS,
    ENOUGH_ROUNDS,
    PROCESS_VARIATION,
    RaceEntry,
    RaceResult,
    Standings,
    ratio,
)
from collage_engine.trials.trial_job import PlacementProfile
from collage_engine.wording.sentences import NO_TURN

PROCESS_BYTES, WEIGHTS_FACTOR, MEMORY_SHARE = 250e6, 4.0, 0.6
"""Bytes of a process without weights, how often it holds these, and the share of the free memory
that contenders may take; chosen, above what any toolchain was seen to take."""
LEAST_LOADED = RUNNERS_UP + 2
"""Contenders that may be loaded at a time, whatever memory seems to hold: the best placement of the
search, its runners-up, and the toolchain that they are compared with."""

OnProgress = Callable[[int, int, str], None]
"""Takes the steps done, the steps in all, and a few words on what is at work."""


def _silent(done: int, total: int, now: str) -> None:
    """Report no progress."""


class Race:
    """Builds and times whole placements; closing its bench ends their processes.

    Attributes:
        bench: Builds placements and runs them in processes.
        standings: The entries with their rounds: who leads, who is slower, what each one takes.
        clock: The time that is left, and what steps are likely to take.
    """

    def __init__(
        self,
        bench: TrialBench,
        ends_at: float = math.inf,
        *,
        keep: Flag | None = None,
        on_answer: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        """Prepare; nothing takes part yet.

        Args:
            bench: Builds placements and runs them in processes; the race closes it.
            ends_at: When the race is to be over, on the clock. It goes on until there is an answer.
            keep: Set when the race is to end soon and to keep its leader.
            on_answer: Is called when there is a first answer, and when there is a faster one.
            clock: Returns the time now, in seconds.
            seed: Of the orders in which contenders run; None: any.
        """
        self.bench = bench
        self.standings = Standings()
        self.clock = RaceClock(self.standings, ends_at, keep, clock)
        self.on_answer = on_answer
        self._answered: RaceEntry | None = None
        self._random = random.Random(seed)
        self._round = 0

    @property
    def leader(self) -> RaceEntry | None:
        """Return the fastest entry that may be exported; None: none ran yet."""
        return self.standings.leader

    # ------------------------------------------------------------------ entering

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
        waiting = self.standings.join(contenders, self.bench)
        total = len(waiting)
        while waiting and not self._is_over(ends_at):
            entry, *waiting = waiting
            tell = partial(on_progress, total - len(waiting) - 1, total)
            # What takes long lets the others go first, and goes on with the kernels that it has.
            share_s = STEP_SHARE * min(self.clock.left_s, ends_at - self.clock.now())
            until = self.clock.now() + share_s if waiting and share_s > LEAST_S else math.inf
            if not self._enter_next(entry, ends_at, until, tell):
                waiting.append(entry)
        for entry in waiting:  # it may enter later, when there is more time
            self.standings.drop(entry)

    def _is_over(self, ends_at: float) -> bool:
        """Tell whether there is an answer, and no time for another contender."""
        return self.leader is not None and self.clock.is_over(ends_at)

    def _enter_next(
        self, entry: RaceEntry, ends_at: float, until: float, tell: Callable[[str], None]
    ) -> bool:
        """Build, load and time a contender; return whether there was time for it.

        Args:
            entry: The contender.
            ends_at: When the entering is to be over, on the clock, where there is an answer.
            until: When it is to be built and loaded, whether there is one or not.
            tell: Takes what is done.
        """

        def is_over() -> bool:
            return self.clock.now() >= until or self._is_over(ends_at)

        title = entry.contender.title
        tell(f"building {title}")
        if not entry.process.build(is_over):
            return False
        if entry.process.failure is None:
            self._make_room()
            tell(f"checking {title}")
            if not entry.process.load(is_over):
                return False
        if entry.takes_part:
            entry.loads += 1
            tell(f"timing {title}")
            self._settle(entry, ends_at)
        return True

    def _settle(self, new: RaceEntry, ends_at: float) -> None:
        """Run rounds until an entry that is new has had as many as it takes to leave."""
        until = self.clock.now() + SETTLE_S
        while new.takes_part and len(new.rounds) < COMMON_ROUNDS:
            self.round()
            if self.clock.is_over(ends_at) or self.clock.now() >= until:
                break
        if self.standings.call_us is None and new.takes_part:
            with contextlib.suppress(WorkerError, ToolchainError):
                *_, self.standings.call_us = new.process.partition_times(RUNS_PER_PROFILE)
        if self.leader is not None and self.leader is not self._answered:
            self._answered = self.leader
            self.on_answer()

    def _make_room(self) -> None:
        """Have the slowest leave where one more would take too much memory."""
        weights_bytes = self.bench.model.record.weights_bytes
        present = self.standings.present
        most = most_loaded(weights_bytes, len(present))
        others = [entry for entry in present if entry is not self.leader]
        others.sort(key=self.standings.behind)
        while others and len(others) + 2 > most:
            self._leave(others.pop())

    def try_cover(self, contender: Contender, *, ends_at: float = math.inf) -> ContenderResult:
        """Have a placement enter, and return what came of it.

        Args:
            contender: The placement.
            ends_at: When that is to be over, on the clock.

        Raises:
            Cancelled: The user stopped it.
        """
        self.enter([contender], ends_at=ends_at)
        entry = self.standings.entry(contender)
        if entry is None:
            self.standings.forget(contender)
            return ContenderResult(contender=contender, reason=NO_TURN, reached=False)
        return self.standings.result_of(entry)

    def time_without_entering(
        self, contenders: Sequence[Contender], *, ends_at: float
    ) -> dict[str, float | None]:
        """Time placements that are no contenders of this race; they do not stay.

        Args:
            contenders: The placements, which may not win.
            ends_at: When that is to be over, on the clock.

        Returns:
            Microseconds by the names of the contenders that were reached; None: one failed.

        Raises:
            Cancelled: The user stopped it.
        """
        self.enter(contenders, ends_at=ends_at)
        times = {}
        for contender in contenders:
            entry = self.standings.forget(contender)
            if entry is not None:
                times[contender.name] = self.standings.time_us(entry)
                entry.process.close()
        return times

    # ------------------------------------------------------------------ rounds

    def round(self) -> None:
        """Time everything that is loaded once, in a new random order; the clearly slower leave.

        Raises:
            Cancelled: The user stopped it.
        """
        self._round += 1
        present = self.standings.present
        for entry in self._random.sample(present, len(present)):
            if self.leader is not None and entry.rounds and entry.round_s > self.clock.left_s:
                continue
            began = self.clock.now()
            calls = entry.process.timed_round()
            entry.round_s = self.clock.now() - began
            if calls is None:
                entry.process.close()
                continue
            entry.rounds[self._round] = (entry.loads, statistics.median(calls))
            if len(entry.contender.cover) > 1 and len(entry.profiles) < COMMON_ROUNDS:
                with contextlib.suppress(WorkerError, ToolchainError):  # what was timed stays
                    us, between_us, _ = entry.process.partition_times(RUNS_PER_PROFILE)
                    entry.profiles[self._round] = [*us, between_us]
        self.standings.lead()
        for entry in self.standings.present:
            if self.standings.is_slower(entry):
                self._leave(entry)

    def _leave(self, entry: RaceEntry) -> None:
        """End an entry's part in the race; its ratio to the leader is what is known of it.

        Modules of placements that no other process would make the fastest are removed: each is as
        large as the model.
        """
        assert self.leader is not None
        entry.behind = ratio(entry, self.leader)
        entry.lost_to = self.leader
        entry.process.ask_memory()
        if entry.contender.kind == COLLAGE and entry.behind > PROCESS_VARIATION:
            entry.process.discard()
        else:
            entry.process.close()

    # ------------------------------------------------------------------ the end

    def finish(self, on_progress: OnProgress = _silent, *, others: bool = True) -> RaceResult:
        """Choose the winner and time it afresh, as far as there is time.

        Args:
            on_progress: Is called before each step.
            others: Whether the layers of toolchains that did not win are timed, too.

        Raises:
            ToolchainError: No placement could be built and run with right numbers.
            InfeasibleError: All that run take more memory than is allowed.
            Cancelled: The user stopped it.
        """
        self.bench.end_builder()
        self._run_last_rounds(on_progress)
        near = self.standings.near()
        needs_s = COMMON_ROUNDS * sum(entry.round_s for entry in near) + self.clock.last_steps_s
        needs_s += self.clock.load_s * len(near)
        # Where one is loaded at a time, each round was in a process of its own already.
        if len(near) > 1 and not self.bench.exclusive and needs_s < self.clock.left_s:
            self._load_again(near)
            self._run_last_rounds(on_progress)
        winner = self.standings.choose()
        while winner.process.load_s + self.clock.fresh_rounds_s < self.clock.left_s:
            on_progress(1, 1, f"timing {winner.contender.title}")
            if self._time_afresh(winner):
                break
            winner = self.standings.choose()
        if winner.process.loaded:  # also where there was no time for a fresh process
            winner.layers = self._where_time_goes(winner)
            if others:
                self._profile_others(winner, on_progress)
        return self.standings.result(winner)

    def _run_last_rounds(self, on_progress: OnProgress) -> None:
        """Run rounds until the order is settled, or only the last steps have time left."""
        first = self._round
        while self.leader is not None and not self.standings.is_settled(self._round - first):
            if self.clock.last_steps_s + self.clock.round_s >= self.clock.left_s:
                return
            done = self._round - first
            total = max(ENOUGH_ROUNDS, done + 1)
            racing = counted(len(self.standings.present), "contender")
            on_progress(done, total, f"round {done + 1} of {total}, {racing}")
            self.round()

    def _load_again(self, entries: Sequence[RaceEntry]) -> None:
        """Load entries in other processes, also those that have left."""
        for entry in entries:
            entry.lost_to = None
            entry.loads += 1
            entry.process.load()

    def _time_afresh(self, winner: RaceEntry) -> bool:
        """Time the winner in a new process; return whether it ran."""
        for entry in self.standings.present:
            entry.process.ask_memory()
        winner.process.load()
        while winner.process.failure is None and len(winner.fresh_us) < 2 * COMMON_ROUNDS:
            if winner.fresh_us and winner.round_s > self.clock.left_s:
                break
            calls = winner.process.timed_round()
            if calls is not None:
                winner.fresh_us.append(statistics.median(calls))
        if winner.process.failure is not None:
            winner.fresh_us.clear()
        return bool(winner.fresh_us)

    def _profile_others(self, winner: RaceEntry, on_progress: OnProgress) -> None:
        """Time the layers of whole models on other toolchains, too, as far as there is time."""
        # They decide nothing: together they get no more than the shortest run has in all.
        self.clock.ends_at = min(self.clock.ends_at, self.clock.now() + SHORTEST_RUN_S)
        others = [one for one in self.standings.entries if one.contender.kind == "whole-model"]
        for entry in sorted(others, key=lambda one: self.standings.time_us(one) or math.inf):
            us, process = self.standings.time_us(entry), entry.process
            if entry is winner or us is None or process.failure is not None:
                continue
            # It is loaded twice, and either may take longer than it did before.
            if 3 * process.load_s + layers_s(us) > self.clock.left_s:
                return
            on_progress(1, 1, f"timing the layers of {entry.contender.title}")
            if not process.loaded:
                process.load()
            entry.layers = self._where_time_goes(entry)
            process.close()

    def _where_time_goes(self, winner: RaceEntry) -> tuple[LayerTime, ...]:
        """Return what the winner's kernels and layers take; nothing where it is not known."""
        winner.process.ask_memory()
        process, built, us = winner.process, winner.process.built, self.standings.time_us(winner)
        if built is None or us is None:
            return ()
        calls: tuple[KernelTime, ...] = ()
        inside, runs = PlacementProfile(), runs_of_layers(us)
        with contextlib.suppress(WorkerError, ToolchainError):
            calls = process.profile(runs).calls
            has_time = process.load_s + layers_s(us) / 2 < self.clock.left_s
            if calls and wants_layers(built) and has_time:
                inside = process.layers_inside(runs)
        if not calls:
            return ()
        return layer_times(self.bench.model.graph, built, calls, inside, us)


def most_loaded(weights_bytes: int, held: int) -> int:
    """Return how many contenders may be loaded at a time.

    Args:
        weights_bytes: Bytes of the model's weights.
        held: How many are loaded now, which the free memory holds already.
    """
    contender_bytes = PROCESS_BYTES + WEIGHTS_FACTOR * weights_bytes
    most = held + int(available_bytes() * MEMORY_SHARE / contender_bytes)
    return max(LEAST_LOADED, most)
