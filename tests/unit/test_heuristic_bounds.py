"""Bounds that rest on what parts took alone, and how measured groups correct them."""

from __future__ import annotations

import pytest

from collage_engine.bounds.heuristic import (
    CALL,
    FASTEST_SHARE,
    FLOOR_SHARE,
    GROUPS_TO_LEARN_FROM,
    MEASURED_SHARE_FACTOR,
    OWN_SHARE,
    SINGLE_OPERATOR_SHARE,
    SMALLER_GROUPS_SHARE,
    Parts,
)
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.cost import Cost, invalid
from collage_engine.records.graph import GraphRecord, Node, TensorType
from collage_engine.records.toolchain import ToolchainInstance

FAST, SLOW = (ToolchainInstance(toolchain=name, threads=1) for name in ("fast", "slow"))


def graph(*ops: str) -> GraphRecord:
    kind = (TensorType((4, 4), "float32"),)
    first = Node(index=0, form="parameter", types=kind)
    calls = [
        Node(index=k, form="call", op=op, inputs=(k - 1,), types=kind)
        for k, op in enumerate(ops, start=1)
    ]
    return GraphRecord(nodes=(first, *calls), inputs=(0,), outputs=(len(ops),))


def candidate(instance: ToolchainInstance, *nodes: int) -> CandidateRecord:
    name = f"{instance.id}:{'+'.join(map(str, nodes))}"
    return CandidateRecord(id=name, instance=instance, nodes=nodes, label=name, key=name)


def us(value: float) -> Cost:
    return Cost(state="measured", median_us=value, low_us=value, high_us=value)


OPS = graph("nn.conv2d", "nn.relu", "matmul", "add")
GROUPS = [(0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 1, 2), (0, 1, 2, 3)]
RECORDS = [candidate(i, *g) for i in (FAST, SLOW) for g in GROUPS]


def bounds(costs: dict[str, Cost], constants: dict[str, float] | None = None) -> dict[str, float]:
    parts = Parts(OPS, RECORDS, constants)
    return {r.id: b for r, b in zip(RECORDS, parts.bounds(costs), strict=True)}


def test_groups_take_most_of_what_their_heavy_operators_take_the_fastest_alone() -> None:
    found = bounds({"fast:0": us(100.0), "fast:2": us(50.0), "slow:0": us(300.0)})
    assert found["fast:0+1"] == pytest.approx(FASTEST_SHARE * 100)
    assert found["fast:0+1+2+3"] == pytest.approx(FASTEST_SHARE * 150)
    assert found["slow:2+3"] == pytest.approx(FASTEST_SHARE * 50), "by whoever is fastest"
    assert found["fast:1"] == 0.0


def test_a_slow_toolchain_is_held_against_itself() -> None:
    found = bounds({"fast:0": us(100.0), "fast:2": us(50.0), "slow:0": us(300.0)})
    assert found["slow:0+1+2"] == pytest.approx(OWN_SHARE * 300), "its matmul is not measured yet"
    assert found["slow:0+1"] == pytest.approx(OWN_SHARE * 300)


def test_a_light_operator_counts_less_and_an_invalid_one_nothing() -> None:
    found = bounds({"fast:0": us(10.0), "fast:1": us(90.0), "fast:2": invalid("no")})
    assert found["fast:0+1"] == pytest.approx(SINGLE_OPERATOR_SHARE * 90)
    assert found["fast:2+3"] == 0.0


def test_a_call_costs_what_a_call_on_a_single_number_does() -> None:
    found = bounds({"slow:0": us(100.0)}, {CALL + "slow": 5.0})
    floor = FLOOR_SHARE * 5.0
    assert found["slow:1"] == found["slow:2+3"] == pytest.approx(floor)
    assert found["fast:1"] == 0.0
    assert found["slow:0+1"] == pytest.approx(floor + FASTEST_SHARE * (100 - floor)), "paid once"


def test_a_group_that_beats_all_times_alone_lowers_what_is_expected_of_every_toolchain() -> None:
    costs = {"fast:0": us(100.0), "slow:0": us(200.0)}
    before = bounds(costs)
    after = bounds(costs | {"fast:0+1": us(50.0)})  # half: the conv alone met a slow moment
    assert after["fast:0+1+2"] == pytest.approx(before["fast:0+1+2"] / 2)
    assert after["slow:0+1"] == pytest.approx(before["slow:0+1"] / 2)
    assert after["slow:0+1+2+3"] == pytest.approx(before["slow:0+1+2+3"] / 2)


def test_a_group_that_beats_its_own_parts_alone_says_so_of_its_toolchain_only() -> None:
    costs = {"fast:0": us(100.0), "slow:0": us(300.0)}
    after = bounds(costs | {"slow:0+1": us(150.0)})  # half of its own, no less than the fastest
    assert after["slow:0+1+2"] == pytest.approx(OWN_SHARE * 150)
    assert after["fast:0+1"] == pytest.approx(FASTEST_SHARE * 100)


def test_a_toolchain_is_taken_at_what_its_groups_took_once_a_few_are_measured() -> None:
    ops = graph(*["nn.conv2d", "nn.relu"] * (GROUPS_TO_LEARN_FROM + 1))
    pairs = [(2 * k, 2 * k + 1) for k in range(GROUPS_TO_LEARN_FROM + 1)]
    records = [candidate(i, *n) for i in (FAST, SLOW) for p in pairs for n in (p[:1], p)]
    costs = {f"fast:{first}": us(100.0) for first, _ in pairs}
    costs |= {f"slow:{first}": us(300.0) for first, _ in pairs}
    last = f"slow:{pairs[-1][0]}+{pairs[-1][1]}"

    def bound(measured: int) -> float:
        known = {f"slow:{a}+{b}": us(330.0 + a) for a, b in pairs[:measured]}
        found = Parts(ops, records).bounds(costs | known)
        return next(b for r, b in zip(records, found, strict=True) if r.id == last)

    assert bound(GROUPS_TO_LEARN_FROM - 1) == pytest.approx(OWN_SHARE * 300)
    assert bound(GROUPS_TO_LEARN_FROM) == pytest.approx(MEASURED_SHARE_FACTOR * 300), (
        "none of them took less than its parts"
    )


def test_smaller_groups_of_several_heavy_operators_tell_more_of_larger_ones_only() -> None:
    costs = {"fast:0": us(100.0), "fast:2": us(100.0)}
    known = bounds(costs | {"fast:0+1+2": us(240.0)})
    assert known["fast:0+1+2+3"] == pytest.approx(SMALLER_GROUPS_SHARE * 240)
    whole = bounds(costs | {"fast:0+1+2+3": us(400.0)})
    assert whole["fast:0+1+2"] == pytest.approx(FASTEST_SHARE * 200), (
        "the rest of the whole is not in it"
    )
    single = bounds(costs | {"fast:0+1": us(150.0)})
    assert single["fast:0+1+2"] == pytest.approx(FASTEST_SHARE * 200)


@pytest.mark.parametrize("op", ["quantize", "strided_slice"])
def test_groups_that_may_take_less_than_their_parts_have_no_such_bound(op: str) -> None:
    records = [candidate(FAST, 0), candidate(FAST, 0, 1)]
    parts = Parts(graph("matmul", op), records)
    assert parts.bounds({"fast:0": us(100.0)}) == [0.0, 0.0]
