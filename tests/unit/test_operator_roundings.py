"""What reduced precision does to each operator, by what a run has found out of single products."""

from __future__ import annotations

import itertools

from collage_engine.drawing.box_styles import operator_roundings
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records.placement import Placement
from collage_engine.records.precision import Accuracy, RoundedProduct
from tests.support.graphs import operator, record_of
from tests.support.runs import partition


def test_operators_are_told_apart_by_what_is_rounded() -> None:
    ops = ("nn.conv2d", "nn.relu", "matmul", "matmul", "nn.conv2d")
    graph = OperatorGraph(record_of(*itertools.starmap(operator, enumerate(ops))))
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
