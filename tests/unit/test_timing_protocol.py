"""The timing protocol on a made-up clock: no second passes here."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from collage_engine.timing.protocol import (
    ProtocolSettings,
    Timing,
    is_contested,
    time_cold,
    time_interleaved,
)
from collage_engine.timing.timing_costs import KEPT_REPEATS, cost_of, kept_repeats, merged


class World:
    """A clock that only timed move on, with a machine speed that drifts."""

    def __init__(self, seed: int = 1, noise: float = 0.01) -> None:
        self.now = 0.0
        self.calls: list[tuple[str, int]] = []
        self.random = random.Random(seed)
        self.noise = noise
        self.slowness = lambda now: 1.0

    def clock(self) -> float:
        return self.now

    def timed_call(self, name: str, seconds: float, first: float = 0.0):
        fresh = [True]

        def run(calls: int) -> float:
            self.calls.append((name, calls))
            each = seconds * self.slowness(self.now) * (1 + abs(self.random.gauss(0, self.noise)))
            took = each * calls + (first if fresh[0] else 0.0)
            fresh[0] = False
            self.now += took
            return took

        return run

    def count(self, name: str) -> int:
        return sum(n == name for n, _ in self.calls)


def test_samples_last_long_enough_and_exclude_the_first_call():
    world = World()
    (timing,) = time_interleaved([world.timed_call("a", 2e-6, first=0.5)], clock=world.clock)
    assert timing.calls >= 490
    assert timing.median == pytest.approx(2e-6, rel=0.02)
    assert len(timing.samples) >= 5 and timing.low <= timing.median <= timing.high


def test_a_lone_steady_candidate_is_done_quickly():
    world = World(noise=0.002)
    (timing,) = time_interleaved([world.timed_call("a", 1e-4)], clock=world.clock)
    assert 6 <= len(timing.samples) <= 10
    assert world.now < 0.02


def test_a_lone_noisy_candidate_stops_at_its_budget():
    world = World(noise=1.0)
    (timing,) = time_interleaved([world.timed_call("a", 1e-4)], clock=world.clock)
    assert 0.05 < world.now < 0.08 and not timing.dropped


def test_a_slow_and_hopeless_candidate_gets_one_sample():
    world = World()
    _, slow = time_interleaved(
        [world.timed_call("a", 1e-3), world.timed_call("b", 1.0)], clock=world.clock
    )
    assert len(slow.samples) == 1 and slow.dropped and world.count("b") == 2


def test_slow_candidate_still_gets_its_three_samples():
    world = World()
    (timing,) = time_interleaved([world.timed_call("a", 2.0)], clock=world.clock)
    assert len(timing.samples) == 3


def test_hopeless_and_clearly_worse_are_dropped_early():
    world = World()
    settings = ProtocolSettings()
    timed = [
        world.timed_call("hopeless", 5e-3),
        world.timed_call("best", 1.00e-3),
        world.timed_call("near", 1.01e-3),
        world.timed_call("worse", 1.5e-3),
    ]
    timings = time_interleaved(timed, settings, clock=world.clock)
    assert [t.dropped for t in timings] == [True, False, False, True]
    assert len(timings[0].samples) == settings.hopeless_rounds
    assert len(timings[3].samples) == settings.min_rounds
    assert len(timings[1].samples) == len(timings[2].samples) > settings.min_rounds
    assert timings[1].median < timings[2].median


def test_rounds_cancel_a_drifting_machine():
    """One machine slows down to half while measuring; the order of timed is still found."""
    right = 0
    for seed in range(20):
        world = World(seed=seed, noise=0.01)
        world.slowness = lambda now: 1.0 + now * 3
        a, b = time_interleaved(
            [world.timed_call("a", 1.05e-3), world.timed_call("b", 1.00e-3)],
            clock=world.clock,
            seed=seed,
        )
        assert a.rounds and b.rounds
        right += b.median < a.median
    assert right >= 19


def test_samples_of_an_unsettled_machine_count_by_their_faster_half():
    """Another program runs half of the time and makes everything slower by half."""
    medians = {}
    for name, slow in (("calm", 1.0), ("disturbed", 1.5)):
        world = World(noise=0.005)
        chance = random.Random(7)

        def slowness(_: float, by: float = slow, chance: random.Random = chance) -> float:
            return by if chance.random() < 0.5 else 1.0

        world.slowness = slowness
        timed = [world.timed_call("a", 1.00e-3), world.timed_call("b", 1.06e-3)]
        medians[name] = timings = time_interleaved(timed, clock=world.clock)
        assert [t.calm for t in timings] == [slow > 1.0] * 2
        for timing in timings:
            assert len(timing.samples) == len(timing.rounds) and timing.rounds == sorted(
                timing.rounds
            )
    for calm, disturbed in zip(medians["calm"], medians["disturbed"], strict=True):
        assert disturbed.median == pytest.approx(calm.median, rel=0.01)
        assert disturbed.high < 1.05 * calm.high


def test_a_single_jumpy_candidate_does_not_make_the_machine_unsettled():
    world = World(noise=0.005)
    steady = [world.timed_call(n, 1e-3) for n in "abc"]
    jumpy = world.timed_call("d", 1e-3)

    def jumps(calls: int) -> float:
        return jumpy(calls) * world.random.choice((1.0, 1.4))

    timings = time_interleaved([*steady, jumps], clock=world.clock)
    assert not any(t.calm for t in timings) and timings[3].high > 1.3 * timings[3].low


def test_a_round_visits_everyone_in_changing_order():
    world = World()
    time_interleaved(
        [world.timed_call(n, 1e-3) for n in "abc"],
        ProtocolSettings(sample_s=0, warm_calls=1, max_rounds=20, contested_budget_s=9),
        clock=world.clock,
    )
    names = [n for n, _ in world.calls][3:]
    rounds = [names[i : i + 3] for i in range(0, len(names), 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len({tuple(r) for r in rounds}) > 2


def test_close_candidates_get_more_time_than_clear_ones():
    def spent(second: float) -> float:
        world = World(noise=0.6)
        timed = [world.timed_call("a", 1e-3), world.timed_call("b", second)]
        time_interleaved(timed, ProtocolSettings(max_rounds=500), clock=world.clock)
        return world.now

    assert spent(1e-3) > 1.5 * spent(1.9e-3)
    settings = ProtocolSettings()
    assert spent(1e-3) < 2 * settings.contested_budget_s * 1.1


def test_interrupted_samples_are_taken_again():
    world = World(noise=0.001)
    switches = [0]
    plain = world.timed_call("a", 1e-5)
    turn = [0]

    def interrupted(calls: int) -> float:
        turn[0] += 1
        seconds = plain(calls)
        if turn[0] % 2:
            switches[0] += 1
            world.now += 0.004
            return seconds + 0.004
        return seconds

    settings = ProtocolSettings(budget_s=1.0)
    (timing,) = time_interleaved(
        [interrupted], settings, clock=world.clock, interruptions=lambda: switches[0]
    )
    assert timing.high == pytest.approx(1e-5, rel=0.01)
    everything = ProtocolSettings(budget_s=1.0, unsettled=math.inf)
    (naive,) = time_interleaved([interrupted], everything, clock=world.clock)
    assert naive.high > 3e-5


def test_a_machine_that_never_rests_is_measured_all_the_same():
    world = World(noise=0.001)
    count = iter(range(10**9))
    timed_call = world.timed_call("a", 1e-5)
    (timing,) = time_interleaved([timed_call], clock=world.clock, interruptions=lambda: next(count))
    assert len(timing.samples) >= 7 and timing.median == pytest.approx(1e-5, rel=0.01)


def test_whose_turn_it_is_is_told_before_it_runs():
    world = World()
    turns: list[int] = []
    seen: list[tuple[int, str]] = []

    def watch(name: str):
        inner = world.timed_call(name, 1e-3)

        def run(calls: int) -> float:
            seen.append((turns[-1], name))
            return inner(calls)

        return run

    time_interleaved([watch("a"), watch("b")], clock=world.clock, about_to_run=turns.append)
    assert len(seen) == len(turns)
    assert set(seen) == {(0, "a"), (1, "b")}


def test_a_candidate_that_fails_is_not_hidden():
    def broken(calls: int) -> float:
        raise RuntimeError("bad kernel")

    with pytest.raises(RuntimeError, match="bad kernel"):
        time_interleaved([broken])
    assert time_interleaved([]) == []


def test_contested():
    def timing(values: list[float]) -> Timing:
        return Timing(samples=values, rounds=list(range(len(values))))

    assert not is_contested([timing([1.0] * 8)])
    assert not is_contested([timing([1.0] * 8), timing([1.1] * 8)])
    assert not is_contested([timing([1.0] * 8), timing([1.001] * 8)]), "a tie is settled"
    assert is_contested([timing([1.0] * 4), timing([1.1] * 4)]), "too few to tell"
    jumpy = [1.0, 1.2, 0.9, 1.1, 1.3, 0.8, 1.0, 1.1]
    assert is_contested([timing([1.0] * 8), timing(jumpy)])
    # The same jumps in the same rounds are the machine's, not the timed'.
    assert not is_contested([timing(jumpy), timing([j + 0.05 for j in jumpy])])


def test_cold_runs_evict_and_warm_before_each_single_call():
    log: list[str] = []
    times = iter([5.0, 1.0, 2.0])

    def timed_call(calls: int) -> float:
        log.append(f"run{calls}")
        return next(times)

    median = time_cold(
        timed_call,
        lambda: log.append("evict"),
        lambda: log.append("warm"),
        rounds=3,
        about_to_run=lambda: log.append("mark"),
    )
    assert median == 2.0 and log == ["evict", "warm", "mark", "run1"] * 3


def test_cost_and_merging():
    timing = Timing(samples=[2e-6, 1e-6, 3e-6], rounds=[0, 1, 2])
    cost = cost_of(timing, threads=2, fingerprint="f", measured_at="now", cold_s=9e-6)
    assert (cost.median_us, cost.cold_us, cost.count) == pytest.approx((2.0, 9.0, 3))
    assert cost.repeats_us == pytest.approx((2.0, 1.0, 3.0)) and cost.threads == 2
    slow = cost_of(timing, threads=2, reading_us=60.0, reference_us=30.0, cold_s=9e-6)
    assert (slow.median_us, slow.low_us, slow.high_us) == pytest.approx(
        (1.0, (cost.low_us or 0) / 2, (cost.high_us or 0) / 2)
    )
    assert slow.repeats_us == pytest.approx((1.0, 0.5, 1.5)) and slow.slowness == 2.0
    assert slow.cold_us == pytest.approx(4.5)
    later = cost_of(Timing(samples=[4e-6] * 100, rounds=list(range(100))), threads=2)
    both = merged(cost, later)
    assert both.count == 103 and len(both.repeats_us) == 3 + KEPT_REPEATS // 2
    assert both.cold_us == 9.0 and both.high_us == pytest.approx(4.0)
    assert len(later.repeats_us) == KEPT_REPEATS


def test_kept_repeats_are_spread_over_time():
    chosen = kept_repeats([float(i) for i in range(1000)])
    assert len(chosen) == KEPT_REPEATS and chosen[0] == 0 and chosen[-1] > 980
    assert all(a < b for a, b in pairwise(chosen))
