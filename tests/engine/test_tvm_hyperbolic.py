"""sinh and cosh on TVM, and what TVM says when it cannot build."""

from __future__ import annotations

import numpy as np
import pytest

from collage_engine.lowering.compile import compile_function
from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import ToolchainInstance
from tests.support.toolchain_cases import imported, one_node, whole

TVM = ToolchainInstance(toolchain="tvm")


@pytest.mark.parametrize("op", ["Sinh", "Cosh"])
def test_right_near_zero_and_far_from_it(op: str) -> None:
    net = imported(one_node(op, (4, 50)))
    x = np.geomspace(1e-6, 20, 200, dtype=np.float32).reshape(4, 50)
    x[::2] *= -1
    with compile_function(whole(net, TVM)) as compiled:
        (found,) = compiled.run([x])
    wanted = getattr(np, op.lower())(x.astype(np.float64))
    np.testing.assert_allclose(found, wanted, rtol=2e-6)


@pytest.mark.parametrize("op", ["Sinh", "Cosh"])
def test_finite_up_to_the_largest_number(op: str) -> None:
    """The exponential overflows from 88.73 on, its half only from 89.42 on."""
    net = imported(one_node(op, (6,)))
    x = np.array([88.9, -88.9, 89.4, -89.4, 90, -90], np.float32)
    with compile_function(whole(net, TVM)) as compiled:
        (found,) = compiled.run([x])
    with np.errstate(over="ignore"):
        wanted = getattr(np, op.lower())(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=4e-6)


def test_what_cannot_be_built_is_an_error_of_the_toolchain(monkeypatch) -> None:
    from tvm import relax

    def build(*_: object, **__: object) -> None:
        raise ValueError("Traceback\n\n  unknown intrinsic tirx.sinh\n")

    net = imported(one_node("Relu", (4, 5)))
    monkeypatch.setattr(relax, "build", build)
    with pytest.raises(ToolchainError, match="TVM cannot build it: unknown intrinsic"):
        compile_function(whole(net, TVM))
