"""Products that a reduced instance leaves in float32, as TVM legalises them for NVIDIA devices."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")

from collage_engine.kernels.cuda import lowering
from collage_engine.kernels.cuda.legalize import Products
from collage_engine.kernels.cuda.product.plan import F16, PLAIN
from collage_engine.records.precision import FLOAT16, PRODUCTS, careful
from collage_engine.records.toolchain import Target
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from tests.support.toolchain_cases import Net, imported, whole


def test_products_left_in_float32_are_computed_so(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    y = net.add("Relu", net.add("Conv", net.input(1, 64, 16, 16), net.randn(64, 64, 3, 3)))
    y = net.add("Conv", y, net.randn(64, 64, 1, 1))
    y = net.add("Flatten", net.add("GlobalAveragePool", y))
    model = imported(net.model(net.add("MatMul", y, net.randn(64, 64))))
    graph = model.graph
    products = [k for k, i in enumerate(graph.operators) if graph.nodes[i].op in PRODUCTS]
    assert len(products) == 3
    asked: list[str] = []

    class Recorded(Products):
        """Notes the arithmetic of each product in order."""

        def _math(self, *operands: Any) -> str | None:
            found = super()._math(*operands)
            asked.append(str(found))
            return found

    monkeypatch.setattr(lowering, "Products", Recorded)
    _, reduced = TvmToolchain().instances(Target.cuda("sm_90a"), FLOAT16)
    TvmToolchain().lower(whole(model, careful(reduced, [products[1]])))
    assert asked == [F16, PLAIN, F16]
    asked.clear()
    TvmToolchain().lower(whole(model, reduced))
    assert asked == [F16] * 3
