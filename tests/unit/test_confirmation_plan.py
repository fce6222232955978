"""Who is confirmed in the time that is left, and what stands for those who are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collage_engine.build.built import BuiltModule
from collage_engine.records.errors import ToolchainError
from collage_engine.run.run_document import tied_with_winner
from collage_engine.trials.confirmation import ROUNDS_ALONE, Confirmation
from collage_engine.trials.confirmation_plan import (
    AT_ONCE,
    LARGEST_SHARE,
    TimeLeft,
    confirmation_of_trials,
    kept_back,
    plan_confirmation,
    with_left_out,
)
from collage_engine.trials.contender import Contender, ContenderResult
from collage_engine.trials.placement_process import ONE_LOADED_FROM_BYTES
from collage_engine.trials.runner import NOT_REACHED
from collage_engine.trials.whole_models import WholeModels
from tests.support.scripted_workers import cover

BUILT = BuiltModule(parts=(), kernels=(), libraries=(), environment={}, threads=1, spin=False)


def whole(name: str, **more: object) -> Contender:
    return Contender(name=name, kind="whole-model", cover=cover(name), **more)  # type: ignore[arg-type]


def placement(place: int) -> Contender:
    return Contender(name=f"collage {place}", kind="collage", cover=cover(f"p{place}"), order=place)


def tried(contender: Contender, us: float, build_s: float = 4.0) -> ContenderResult:
    return ContenderResult(
        contender=contender,
        rounds_us=(us,) * 5,
        folder=Path("/module"),
        built=BUILT,
        build_s=build_s,
        load_s=2.0,
        from_trial=True,
    )


A, B, C = whole("a"), whole("b"), whole("c")
KNOWN = WholeModels(results=(tried(A, 900.0), tried(B, 500.0), tried(C, 700.0)))
GREEDY = Contender(name="greedy", kind="greedy", cover=cover("g"))
EVERYBODY = [placement(0), placement(1), A, B, C, GREEDY]


def names(contenders: tuple[Contender, ...]) -> set[str]:
    return {one.name for one in contenders}


def test_where_each_round_loads_its_placement_the_time_for_that_counts() -> None:
    large = int(ONE_LOADED_FROM_BYTES)
    plan = plan_confirmation(EVERYBODY, KNOWN, 60.0, weights_bytes=large)
    rounds_s = 6 * 2.0  # of one contender: three of each set, two seconds for loading
    assert len(plan.contenders) * rounds_s < plan.least_s < 60.0
    assert "b" in names(plan.contenders)
    assert len(plan.contenders) < len(plan_confirmation(EVERYBODY, KNOWN, 60.0).contenders)
    assert plan.settings.selection_rounds == plan.settings.most_rounds == ROUNDS_ALONE
    kept_s, _ = kept_back(KNOWN, 1000.0, large)
    assert kept_s > kept_back(KNOWN, 1000.0, large - 1)[0] + 5 * rounds_s
    assert not plan_confirmation(EVERYBODY, KNOWN, kept_s, weights_bytes=large).left_out


def test_with_time_enough_everybody_is_confirmed() -> None:
    plan = plan_confirmation(EVERYBODY, KNOWN, 300.0)
    assert list(plan.contenders) == EVERYBODY and not plan.left_out
    assert plan.settings.budget_s == 40.0


def test_with_little_time_the_best_whole_model_and_the_best_placement_are() -> None:
    plan = plan_confirmation(EVERYBODY, KNOWN, 7.0)
    assert names(plan.contenders) == {"collage 0", "b"}
    assert names(plan.left_out) == {"collage 1", "a", "c", "greedy"}
    assert plan.settings.budget_s < 4.0


def test_whole_models_that_trials_cannot_tell_apart_are_timed_before_further_covers() -> None:
    near = WholeModels(results=(tried(A, 900.0), tried(B, 500.0), tried(C, 540.0)))
    plan = plan_confirmation(EVERYBODY, near, 11.0)
    assert {"collage 0", "b", "c"} <= names(plan.contenders)
    assert "collage 1" in names(plan.left_out)


def test_what_is_built_already_is_cheaper_than_what_is_not() -> None:
    plan = plan_confirmation([placement(0), A, B, C], KNOWN, 4.0)
    assert names(plan.contenders) == {"b", "c"}, "there is no time to build a placement"


def test_without_time_nothing_is_confirmed_and_the_trials_decide() -> None:
    assert plan_confirmation(EVERYBODY, KNOWN, 0.5).contenders == ()
    confirmation = with_left_out(confirmation_of_trials(KNOWN), EVERYBODY, KNOWN)
    assert confirmation.winner.contender is B and confirmation.named == "b"
    by_name = {one.contender.name: one for one in confirmation.results}
    assert by_name["a"].measured_us == 900.0 and by_name["a"].from_trial
    assert by_name["collage 0"].reason == NOT_REACHED
    assert by_name["greedy"].reason == NOT_REACHED


def test_trials_that_cannot_tell_contenders_apart_declare_a_tie() -> None:
    def known(rounds_of_a: tuple[float, ...]) -> WholeModels:
        rounds = {A.key: rounds_of_a, B.key: (500.0, 520.0, 480.0, 500.0, 510.0)}
        return WholeModels(
            results=tuple(replace(tried(one, 0.0), rounds_us=rounds[one.key]) for one in (A, B)),
            sets=(rounds,),
        )

    def tied(rounds_of_a: tuple[float, ...]) -> list[str]:
        session = replace(A, python_session=True)
        whose = [replace(placement(0), name="collage", cover=A.cover), session, B]
        trials = known(rounds_of_a)
        confirmation = with_left_out(confirmation_of_trials(trials), whose, trials)
        assert confirmation.winner.contender is B
        return tied_with_winner(confirmation)

    assert tied((490.0, 530.0, 505.0, 495.0, 512.0)) == ["collage", "a"]
    assert tied((520.0, 540.0, 495.0, 520.0, 530.0)) == [], "it took more in every round"
    assert tied((900.0, 300.0, 700.0, 600.0, 510.0)) == [], "they scatter, but are far apart"


def test_without_any_answer_one_is_tried_whatever_it_takes() -> None:
    plan = plan_confirmation([placement(0), A, B], WholeModels(), 0.0)
    assert len(plan.contenders) == 1
    with pytest.raises(ToolchainError, match="no placement could be built with right numbers"):
        confirmation_of_trials(WholeModels())


def test_a_quick_one_takes_the_placements_and_the_best_baseline() -> None:
    plan = plan_confirmation(EVERYBODY, KNOWN, 60.0, quick=True)
    assert names(plan.contenders) == {"collage 0", "collage 1", "b"}
    assert plan.settings.most_rounds <= 6 and plan.settings.most_reloaded == 0


def test_a_quick_one_takes_the_best_so_far_before_what_the_search_has_found_since() -> None:
    found = Contender(name="collage", kind="collage", cover=A.cover)  # built already, like B
    contenders = [found, A, B]
    plans = (plan_confirmation(contenders, KNOWN, s / 10, quick=True) for s in range(600))
    first = next(plan for plan in plans if plan.contenders)
    assert names(first.contenders) == {"b"}, "whoever stops a run keeps its best so far"


def test_a_quick_one_knows_baselines_from_the_run_before() -> None:
    plan = plan_confirmation(
        [placement(0), A, B, C], WholeModels(), 60.0, quick=True, earlier_us={"a": 9.0, "c": 5.0}
    )
    assert names(plan.contenders) == {"collage 0", "c"}


def test_a_quick_one_takes_the_best_baseline_also_where_it_breaks_a_pin() -> None:
    barred = replace(A, eligible=False)
    plan = plan_confirmation(
        [placement(0), barred, B], WholeModels(), 60.0, quick=True, earlier_us={"a": 4.0, "b": 9.0}
    )
    assert names(plan.contenders) == {"collage 0", "a"}


def test_what_breaks_a_pin_is_confirmed_last() -> None:
    outcomes = (tried(replace(A, eligible=False), 100.0), tried(B, 500.0))
    plan = plan_confirmation([replace(A, eligible=False), B], WholeModels(results=outcomes), 2.5)
    assert names(plan.contenders) == {"b"}


def test_a_whole_model_that_was_not_built_again_in_time_keeps_its_trial() -> None:
    unbuilt = ContenderResult(contender=A, reason=NOT_REACHED)
    best = replace(tried(B, 480.0), from_trial=False)
    confirmation = Confirmation(
        results=(unbuilt, best),
        winner=best,
        named="b",
        tied=(),
        differences={},
        in_place_us=(),
        residual=(),
    )
    outcomes = with_left_out(confirmation, [A, B], KNOWN).results
    assert outcomes[0].measured_us == 900.0 and outcomes[0].reason is None
    assert outcomes[1].measured_us == 480.0 and not outcomes[1].from_trial


def test_what_is_kept_back_grows_with_what_building_takes_and_leaves_the_rest_its_share() -> None:
    slow = WholeModels(results=(tried(A, 1e5, build_s=40.0),))
    fast = WholeModels(results=(tried(A, 1e5, build_s=2.0),))
    assert kept_back(slow, 1000.0, 0)[0] > kept_back(fast, 1000.0, 0)[0] + 60
    confirming_s, exporting_s = kept_back(slow, 60.0, 100_000_000)
    assert confirming_s <= LARGEST_SHARE * 60
    assert exporting_s > kept_back(slow, 60.0, 0)[1]


class Clock:
    """Tells the time that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_time_that_building_did_not_take_is_for_those_that_were_left_out() -> None:
    short = plan_confirmation(EVERYBODY, KNOWN, 9.0)
    assert [one.name for one in short.in_reserve] == ["collage 1", "greedy"], (
        "a and c took clearly longer in their trials"
    )
    clock = Clock()
    reserve = TimeLeft(short, clock() + 9.0, clock)
    clock.now_s += 8.0
    assert reserve.further() == [], "building took as long as was predicted"
    assert reserve.settings().budget_s <= 1.0
    reserve = TimeLeft(short, clock() + 60.0, clock)
    assert [one.name for one in reserve.further()] == ["collage 1", "greedy"]
    assert reserve.further() == [], "each is taken once"
    assert reserve.settings().budget_s > short.settings.budget_s
    assert reserve.settings().most_reloaded > 0


def test_no_more_are_taken_at_a_time_than_are_built_at_a_time() -> None:
    everybody = [placement(place) for place in range(6)] + [B]
    clock = Clock()
    reserve = TimeLeft(plan_confirmation(everybody, KNOWN, 8.0), clock() + 100.0, clock)
    taken = [len(reserve.further()) for _ in range(4)]
    assert taken[0] == AT_ONCE and max(taken) == AT_ONCE and taken[-1] == 0


def test_the_least_rounds_of_those_from_the_reserve_have_their_time_too() -> None:
    clock = Clock()
    reserve = TimeLeft(plan_confirmation(EVERYBODY, KNOWN, 9.0), clock() + 60.0, clock)
    before_s = reserve.least_s
    reserve.further()
    assert reserve.least_s > before_s
    clock.now_s += 60.0 - reserve.least_s - 0.1
    assert not reserve.is_over
    clock.now_s += 0.2
    assert reserve.is_over


def test_a_quick_confirmation_has_no_reserve() -> None:
    quick = plan_confirmation(EVERYBODY, KNOWN, 60.0, quick=True)
    clock = Clock()
    reserve = TimeLeft(quick, clock() + 60.0, clock)
    assert reserve.further() == []
    assert reserve.settings() == quick.settings
