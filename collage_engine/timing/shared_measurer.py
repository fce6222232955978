"""A measurer that lets other machines measure some of its groups.

It does what ``Measurer`` does, and takes part itself: the groups are shared through an
``Exchange``, each is measured by whoever reserves it first, and what others have measured is stored
as if it had been measured here. A group is never split between machines.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from collage_engine.records.candidate import Candidate
from collage_engine.records.event import Event, Measured, Progress
from collage_engine.records.flag import Flag
from collage_engine.store.measurement import Measurement
from collage_engine.timing.exchange import POLL_S, Exchange, GroupsShared, group_id
from collage_engine.timing.measurer import (
    CandidateGroup,
    Measurer,
    MeasuringResult,
    measuring_progress,
)
from collage_engine.timing.speed_probe import Reading

SHARED_FROM = 2
"""Groups from which on it is worth asking others; chosen: one group cannot be split."""
LONGEST_S = 3600.0
"""Seconds that others get for all groups where there is no deadline; chosen."""
ENDED_PROCESS = ("crashed", "gave no answer")
"""How the reasons of candidates begin that ended the process that measured them."""
TRIED_WAIT_S = 20.0
"""Seconds that a run waits for another machine to try such a candidate; chosen."""
LAST_WAIT_S = 60.0
"""Seconds without any news that a run waits for groups of others when it has nothing left to do
itself; chosen: a machine that is lost is known by then, and its group comes back."""


class SharedMeasurer:
    """Measures groups beside other machines. Close it to end the child."""

    def __init__(
        self,
        local: Measurer,
        exchange: Exchange,
        share: Callable[[GroupsShared], None],
        fingerprint: str,
        toolchains: Sequence[str],
    ) -> None:
        """Share the groups of a measurer.

        Args:
            local: Measures here; it must have a store.
            exchange: Where reservations and results lie.
            share: Takes which groups others may measure.
            fingerprint: Of the machines that may.
            toolchains: That the measuring child is given the environment of.
        """
        assert local.store is not None
        self.local = local
        self.store = local.store
        self._exchange = exchange
        self._share = share
        self._fingerprint = fingerprint
        self._toolchains = tuple(toolchains)
        self.from_others = 0
        """Distinct keys that other machines have measured."""

    @property
    def probe_reference(self) -> Reading | None:
        """Return the speed probe's reference on this machine."""
        return self.local.probe_reference

    def close(self) -> None:
        """End the child."""
        self.local.close()

    def renew(self) -> None:
        """End the child: what is measured next here runs in another process."""
        self.local.renew()

    def share_groups(self, groups: Mapping[str, tuple[Candidate, ...]], limit_s: float) -> None:
        """Let others measure these groups, and no longer any others.

        Args:
            groups: The candidates of each group, by its name; none: all groups are taken back.
            limit_s: Seconds that they have for them.
        """
        self._share(
            GroupsShared(groups, self._fingerprint, self.local.versions, self._toolchains, limit_s)
        )

    def measure(
        self,
        groups: Sequence[CandidateGroup],
        *,
        deadline: float | None = None,
        cancel: Flag | None = None,
        on_event: Callable[[Event], None] | None = None,
        again: bool = False,
    ) -> MeasuringResult:
        """Return the costs for all candidates of these groups; see ``Measurer.measure``.

        What is measured again is measured on this machine, so that old and new repeats are
        comparable; so is a single group.
        """
        if again or len(groups) < SHARED_FROM:
            return self.local.measure(
                groups, deadline=deadline, cancel=cancel, on_event=on_event, again=again
            )
        return _SharedCall(self, groups, deadline, cancel, on_event or (lambda _: None)).run()


class _SharedCall:
    """One call of ``SharedMeasurer.measure``."""

    def __init__(
        self,
        measurer: SharedMeasurer,
        groups: Sequence[CandidateGroup],
        deadline: float | None,
        cancel: Flag | None,
        tell: Callable[[Event], None],
    ) -> None:
        self.shared = measurer
        self.store = measurer.store
        self.exchange = measurer._exchange
        self.deadline = deadline
        self.cancel = cancel
        self.tell = tell
        self.outcome = MeasuringResult()
        self.by_key: dict[str, list[Candidate]] = {}
        for group in groups:
            for candidate in group.candidates:
                self.by_key.setdefault(candidate.key, []).append(candidate)
        self.groups = groups
        self.began = time.monotonic()
        self.total = 0
        self.tried_here: dict[str, float] = {}
        """Candidates that ended their process here and are shared with others, by group: until
        when an answer is waited for. Without one they stay invalid."""

    def run(self) -> MeasuringResult:
        """Take the costs that the store has, and measure the others here and elsewhere."""
        known = self.store.get_many(self.by_key, self.shared.local.model_hash)
        for key, cost in known.items():
            self.outcome.costs[key] = cost
            self.outcome.from_store += 1
            self.outcome.invalid += cost.state == "invalid"
            self.announce(key)
        self.total = len(self.by_key) - len(known)
        waiting = self.open_groups()
        if len(waiting) < SHARED_FROM:
            self.measure_here([CandidateGroup(c[0].nodes, c) for c in waiting.values()])
        else:
            self.share(waiting)
        self.outcome.skipped = len(self.by_key) - len(self.outcome.costs)
        return self.outcome

    def open_groups(self) -> dict[str, tuple[Candidate, ...]]:
        """Return groups of candidates without a cost, by name; each key is in one group only."""
        taken: set[str] = set(self.outcome.costs)
        found: dict[str, tuple[Candidate, ...]] = {}
        for group in self.groups:
            members = tuple({c.key: c for c in group.candidates if c.key not in taken}.values())
            if members:
                taken |= {candidate.key for candidate in members}
                found[group_id(members)] = members
        return found

    def share(self, waiting: dict[str, tuple[Candidate, ...]]) -> None:
        """Measure groups until all have an answer, while other machines measure some of them.

        Args:
            waiting: The candidates of each group, by its name.
        """
        elsewhere = dict(waiting)
        """Groups without an answer."""
        self.share_open(elsewhere)
        heard = time.monotonic()
        try:
            while elsewhere and not self.over():
                if self.take_results(elsewhere):
                    heard = time.monotonic()
                open_here = (name for name in elsewhere if name not in self.tried_here)
                mine = next((name for name in open_here if self.exchange.claim(name)), None)
                if mine is not None:
                    members = elsewhere.pop(mine)
                    self.measure_here([CandidateGroup(members[0].nodes, members)])
                    self.share_crashed(members, elsewhere)
                    heard = time.monotonic()
                    continue
                now = time.monotonic()
                for name in [n for n, until in self.tried_here.items() if now > until]:
                    elsewhere.pop(name, None)
                if time.monotonic() - heard > LAST_WAIT_S:
                    # Whoever reserved them does not answer: they are measured here after all.
                    self.exchange.give_back(list(elsewhere))
                time.sleep(POLL_S)
        finally:
            self.shared.share_groups({}, 0.0)
        self.take_results(elsewhere)
        self.outcome.stopped |= self.cancel is not None and self.cancel.is_set()

    def share_open(self, groups: Mapping[str, tuple[Candidate, ...]]) -> None:
        """Let others measure these groups from now on."""
        self.shared.share_groups(dict(groups), min(self.seconds_left(), LONGEST_S))

    def share_crashed(
        self, members: Sequence[Candidate], elsewhere: dict[str, tuple[Candidate, ...]]
    ) -> None:
        """Let another machine try candidates that ended the process that measured them here.

        Args:
            members: The candidates of a group that was measured here.
            elsewhere: The groups without an answer; what is tried again is added to it. Nothing is
                where no other machine has measured anything yet.
        """
        if not self.shared.from_others:
            return
        for candidate in members:
            cost = self.outcome.costs.get(candidate.key)
            if cost is not None and (cost.reason or "").startswith(ENDED_PROCESS):
                name = group_id([candidate])
                self.exchange.give_back([name])
                self.tried_here[name] = time.monotonic() + TRIED_WAIT_S
                elsewhere[name] = (candidate,)
                self.share_open(elsewhere)

    def seconds_left(self) -> float:
        """Return the seconds until the deadline; infinity where there is none."""
        return math.inf if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def over(self) -> bool:
        """Tell whether measuring has to end: the user stopped it, or the time is over."""
        stopped = self.cancel is not None and self.cancel.is_set()
        return stopped or self.outcome.stopped or self.seconds_left() <= 0

    def measure_here(self, groups: Sequence[CandidateGroup]) -> None:
        """Measure groups in this machine's own child, and note their costs."""

        def relay(event: Event) -> None:
            if not isinstance(event, Progress):
                self.tell(event)

        found = self.shared.local.measure(
            groups, deadline=self.deadline, cancel=self.cancel, on_event=relay
        )
        self.outcome.costs.update(found.costs)
        self.outcome.measured += found.measured
        self.outcome.invalid += found.invalid
        self.outcome.stopped |= found.stopped
        self.progress(groups[0].candidates[0].label if groups else "")

    def take_results(self, elsewhere: dict[str, tuple[Candidate, ...]]) -> bool:
        """Store what other machines have measured.

        Args:
            elsewhere: The groups without an answer; those that have one now are taken out, and what
                another machine left out of a group is added as a new group.

        Returns:
            Whether anything had arrived.
        """
        results = self.exchange.results()
        for name, measurements in results.items():
            members = elsewhere.pop(name, ())
            wanted = {candidate.key for candidate in members}
            self.keep([m for m in measurements if m.key in wanted])
            lacking = [c for c in members if c.key not in self.outcome.costs]
            if lacking and name not in self.tried_here:
                # It was not all reached there: what is left is open again, also to this machine.
                again = group_id(lacking)
                self.exchange.give_back([again])
                elsewhere[again] = tuple(lacking)
        return bool(results)

    def keep(self, measurements: Sequence[Measurement]) -> None:
        """Store measurements of another machine and note their costs in place of older ones."""
        self.store.put_many(measurements)
        costs = self.store.get_many([m.key for m in measurements], self.shared.local.model_hash)
        for key, cost in costs.items():
            before = self.outcome.costs.get(key)
            new = before is None
            self.outcome.costs[key] = cost
            self.outcome.measured += new
            self.outcome.invalid += cost.state == "invalid"
            self.outcome.invalid -= before is not None and before.state == "invalid"
            self.shared.from_others += new
            self.announce(key)
        self.progress("")

    def announce(self, key: str) -> None:
        """Send an event for every candidate with this measurement key."""
        for candidate in self.by_key[key]:
            self.tell(Measured(candidate=candidate.id, cost=self.outcome.costs[key]))

    def progress(self, now: str) -> None:
        """Send an event with the number of keys measured, and the seconds that are left."""
        done, elapsed_s = self.outcome.measured, time.monotonic() - self.began
        self.tell(measuring_progress(done, self.total, elapsed_s, self.seconds_left(), now))
