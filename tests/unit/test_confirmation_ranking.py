"""Choosing among timed contenders."""

from __future__ import annotations

import math

import pytest

from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.trials.contender import Contender
from collage_engine.trials.ranking import Timed, choose, difference, settled
from tests.support.covers import candidate_on

TVM = ToolchainInstance(toolchain="tvm")


def contender(name: str, partitions: int, order: int = 0) -> Contender:
    cover = tuple(candidate_on(TVM, (number,)) for number in range(partitions))
    return Contender(name=name, kind="collage", cover=cover, order=order)


def chosen(rounds: list[tuple[Contender, list[float]]]) -> tuple[Contender, list[Contender]]:
    """The winner, and all that are tied, the winner first."""
    tied = [entry.contender for entry in choose([Timed(*one) for one in rounds])]
    return tied[0], tied


def is_settled(*rounds: tuple[Contender, list[float]]) -> bool:
    return settled([Timed(*one) for one in rounds])


def test_the_clearly_faster_wins_however_many_partitions():
    slow, fast = contender("slow", 1), contender("fast", 5)
    winner, tied = chosen([(slow, [10, 11, 10, 10.5, 10]), (fast, [8, 8.2, 8.1, 8, 8.3])])
    assert winner is fast
    assert tied == [fast]


def test_a_tie_goes_to_fewer_partitions_then_to_the_users_order():
    noisy = [10.0, 10.4, 9.8, 10.2, 9.9]
    many, few, later = contender("many", 5), contender("few", 2, 1), contender("later", 2, 2)
    rounds = [
        (many, [9.9, 10.3, 9.9, 10.1, 10.0]),
        (later, [10.0, 10.3, 9.9, 10.1, 10.0]),
        (few, noisy),
    ]
    winner, tied = chosen(rounds)
    assert winner is few
    assert [o.name for o in tied] == ["few", "later", "many"]


def test_a_slow_stretch_that_hits_both_cancels_in_the_difference():
    a = [10.0, 10.0, 50.0, 10.0, 10.0]
    b = [9.0, 9.0, 49.0, 9.0, 9.0]
    apart = difference(a, b)
    assert apart is not None
    assert apart.us == pytest.approx(1.0)
    assert not apart.tied


def test_rounds_that_one_sat_out_do_not_count():
    nan = math.nan
    assert difference([1.0, 1.0, nan, 1.0], [2.0, nan, 2.0, 2.0]) is None
    apart = difference([1.0, 1.0, nan, 1.0], [2.0, 2.0, 9.0, 2.0, 2.0])
    assert apart is not None and apart.us == -1.0
    winner, _ = chosen([(contender("a", 1), [1.0, nan]), (contender("b", 1), [2.0, 2.0])])
    assert winner.name == "a"


def test_equal_data_gives_an_equal_verdict():
    a, b = [3.0, 4.0, 5.0, 2.0, 6.0, 3.5], [3.1, 3.9, 5.2, 2.2, 5.7, 3.3]
    assert difference(a, b) == difference(a, b)


def test_nothing_timed_is_an_error():
    with pytest.raises(ValueError):
        choose([Timed(contender("a", 1), [])])


def test_one_that_sat_out_is_no_tie_for_want_of_rounds():
    nan = math.nan
    slow, fast = contender("slow", 1), contender("fast", 5)
    # One bad round of the fast one would otherwise leave zero within the interval.
    rounds = [(slow, [13.0, 13.0, 13.0, nan, nan]), (fast, [10.0, 10.0, 14.0, 10.0, 10.0])]
    winner, tied = chosen(rounds)
    assert winner is fast and tied == [fast]


def test_a_wide_tie_is_not_settled_and_a_narrow_one_is():
    a, b = contender("a", 1), contender("b", 1)
    best = [10.0] * 7
    assert is_settled((a, best), (b, [10.05, 9.97, 10.02, 9.96, 10.04, 9.98, 10.01]))
    assert not is_settled((a, best), (b, [12.0, 9.0, 11.5, 9.2, 11.0, 9.1, 10.2]))
    assert is_settled((a, best), (b, [12.0, 12.2, 11.9, 12.0, 12.1, 12.0, 12.0]))


WIDE = [10.0, 12.0, 10.0, 12.0, 10.0]
"""Tied with its mirror image, though the medians are 20 % apart."""
WIDE_MIRRORED = [12.0, 10.0, 12.0, 10.0, 12.0]


def test_a_wide_tie_goes_to_fewer_partitions_where_their_times_are_near():
    mixed, alone = contender("mixed", 2, 0), contender("alone", 1, 5)
    winner, tied = chosen([(mixed, WIDE), (alone, WIDE_MIRRORED)])
    assert winner is mixed and len(tied) == 2, "simplicity is not worth a fifth of the time"
    winner, tied = chosen([(mixed, WIDE), (alone, [10.5, 12.0, 9.0, 10.5, 12.0])])
    assert winner is alone and len(tied) == 2


def test_among_equals_the_users_order_holds_only_within_a_percent():
    first, faster = contender("first", 1, 0), contender("faster", 1, 1)
    assert chosen([(first, WIDE_MIRRORED), (faster, WIDE)])[0] is faster
    near = [10.05, 11.9, 10.05, 12.0, 10.0]
    assert chosen([(first, near), (faster, WIDE)])[0] is first
