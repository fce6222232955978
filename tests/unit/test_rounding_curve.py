"""What another tolerance would bring, by what a run has found out of rounding products."""

from __future__ import annotations

import math

import msgspec
import pytest

from collage_engine.drawing.operators import OperatorGraph
from collage_engine.drawing.rounding import RoundingCurve, operator_roundings
from collage_engine.records.placement import Baseline, Placement, Run
from collage_engine.records.precision import Accuracy, RoundedProduct, RoundingTrial
from tests.support.runs import partition
from tests.unit.test_precision import run_of

COUNT = 9
"""Ranked products of the run: the first saves nothing, the others are ranked from the last one."""


def about(**changes: object) -> Accuracy:
    """All products of equal error 0.1 % and work; 4 of 9 were built, and all 9."""
    products = [
        RoundedProduct(operator=0, operations=50.0, error=4e-2),
        *(
            RoundedProduct(operator=k, operations=10.0, error=1e-3, rank=COUNT - k, rounded=k > 5)
            for k in range(1, COUNT + 1)
        ),
    ]
    found = Accuracy(
        precision="bfloat16",
        tolerance=3e-3,
        samples=1,
        float32_us=990.0,
        products=tuple(products),
        ranked_for="tvm",
        tried=(
            RoundingTrial(
                toolchain="onednn", rounded=10, max_rel_error=5e-2, measured_us=100.0, reason="far"
            ),
            RoundingTrial(
                toolchain="tvm", rounded=10, max_rel_error=3e-3, measured_us=550.0, reason="far"
            ),
            RoundingTrial(toolchain="tvm", rounded=4, max_rel_error=3e-3, measured_us=820.0),
        ),
    )
    return msgspec.structs.replace(found, **changes)


def run(accuracy: Accuracy | None) -> Run:
    full = Baseline(name="tvm", kind="whole-model", measured_us=1000.0)
    return msgspec.structs.replace(run_of("bfloat16", 820.0, accuracy), baselines=[full])


def test_measured_points_are_met_and_others_lie_between_them() -> None:
    curve = RoundingCurve.of(run(about(tried=about().tried[2:])))
    assert curve is not None and [p.operator for p in curve.order] == [*range(COUNT, 0, -1)]
    point = curve.at(3.001e-3)  # measured: 1.5 times the root of the sum of squares
    assert point.products == {9, 8, 7, 6}
    assert point.error == pytest.approx(3e-3) and point.us == pytest.approx(820.0)
    less = curve.at(2.2e-3)
    assert less.products == {9, 8}
    assert less.error == pytest.approx(1.5e-3 * math.sqrt(2)) and less.us == pytest.approx(910.0)
    more = curve.at(1.0)
    assert len(more.products) == COUNT and more.error == pytest.approx(4.5e-3)


def test_nothing_is_rounded_that_is_not_faster_than_the_best_in_float32() -> None:
    curve = RoundingCurve.of(run(about(float32_us=900.0)))
    assert curve is not None
    slow = curve.at(1.6e-3)  # one product: 955 µs
    assert slow.products == frozenset() and slow.us == 900.0 and slow.error == 0.0


def test_a_step_that_ended_early_still_has_a_curve() -> None:
    unknown = tuple(msgspec.structs.replace(p, error=None) for p in about().products)
    assert RoundingCurve.of(run(about(products=unknown))) is None  # not even of all together
    early = about(products=unknown, emulated_error=4.5e-3, tried=())
    curve = RoundingCurve.of(run(early))
    assert curve is not None
    point = curve.at(3.001e-3)  # 4 of 9 equal ones: two thirds of the error of all
    assert point.products == {9, 8, 7, 6} and point.us is None
    assert point.error == pytest.approx(3e-3)
    built = RoundingCurve.of(run(msgspec.structs.replace(early, tried=about().tried[2:])))
    assert built is not None and built.at(1.0).error == pytest.approx(4.5e-3)
    assert built.at(3.001e-3).us == pytest.approx(820.0)
    assert built.at(1.0).us == pytest.approx(1000.0 - 180.0 / 4 * 9)  # as much for each operation


class Call:
    """An operator of which only the kind is asked."""

    def __init__(self, op: str) -> None:
        self.op = op


def test_operators_are_told_apart_by_what_is_rounded() -> None:
    calls = tuple(Call(op) for op in ("nn.conv2d", "nn.relu", "matmul", "matmul", "nn.conv2d"))
    graph = OperatorGraph(calls, (), (), (), {}, (), (), (), ())
    known = Accuracy(
        precision="bfloat16",
        tolerance=1e-2,
        samples=1,
        ranked_for="tvm",
        products=(
            RoundedProduct(operator=0, operations=1.0, error=1e-3),
            RoundedProduct(operator=2, operations=1.0, error=2e-3, rank=1),
            RoundedProduct(operator=3, operations=1.0, error=3e-3, rank=0),
        ),
    )
    part = partition(
        *range(5),
        toolchain="tvm",
        config={"precision": "bf16", "float32": "2+4"},
        precision="bfloat16",
    )
    placement = Placement(partitions=(part,), estimated_us=1.0)
    found = operator_roundings(graph, known, placement)
    assert [found[k].state for k in range(5)] == [
        "without gain",
        "no product",
        "full",
        "rounded",
        "full",
    ]
    assert found[3].error == 3e-3 and found[4].error is None
    seen = operator_roundings(graph, known, placement, {2})
    assert [seen[k].state for k in (2, 3)] == ["rounded", "full"]
