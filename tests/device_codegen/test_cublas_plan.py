"""cuBLAS plans, carried out in numpy: what the device is asked to do is what the model says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage_engine.lowering.extract import function_of
from collage_engine.machine.cuda import CudaDevice, CudaProbe
from collage_engine.model.importer import ImportedModel
from collage_engine.records.toolchain import Target
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.cublas.toolchain import DIALECT, CublasToolchain, layout_of
from collage_engine.toolchains.runtime import cuda, kept_files
from tests.device_codegen.cuda_plans import FlatMemory, carried_out, model_of


def carry_out(plan: dict[str, Any], weights: bytes, arguments: list[np.ndarray]) -> None:
    """Do a plan's products on flat memory, results into the last arguments."""
    flat = FlatMemory(plan, weights, arguments).flat
    for s in plan["steps"]:
        m, n, k = s["m"], s["n"], s["k"]
        for i in range(s["batch"]):
            a = flat(s["a"], s["dtype"])[i * s.get("stride_a", 0) :][: m * k]
            b = flat(s["b"], s["dtype"])[i * s.get("stride_b", 0) :][: k * n]
            a = a.reshape(k, m).T if s["transpose_a"] else a.reshape(m, k)
            b = b.reshape(n, k).T if s["transpose_b"] else b.reshape(k, n)
            y = a.astype(s["dtype"]) @ b.astype(s["dtype"])
            if "c" in s:
                c = flat(s["c"], s["dtype"])[i * s.get("stride_c", 0) :][: m * n]
                y = y + c.reshape(m, n)
            if "bias" in s:
                y = y + flat(s["bias"], s["dtype"])[:n]
            if s["epilogue"] == "relu":
                y = np.maximum(y, 0)
            out = flat(s["d"], s["dtype"])
            out[i * s.get("stride_d", 0) :][: m * n] = y.reshape(-1)


run = partial(carried_out, DIALECT, carry_out)
"""The plan of a model, its result, the model's own."""

CASES: dict[str, tuple[ImportedModel, int]] = {
    "reshapes before the residual and before the activation": (
        model_of(
            "float[4,8] x, float[1,4,6] r",
            "p = MatMul(x, w) q = Add(p, b) s = Reshape(q, rows) t = Add(s, r) "
            "u = Reshape(t, flat) y = Relu(u)",
            w=(8, 6),
            b=(6,),
            rows=np.array([1, 4, 6]),
            flat=np.array([4, 6]),
        ),
        1,
    ),
    "transposed right": (
        model_of(
            "float[1,3,4,8] x, float[1,3,5,8] k",
            "t = Transpose<perm=[0, 1, 3, 2]>(k) y = MatMul(x, t)",
        ),
        1,
    ),
    "one left matrix for a batch": (
        model_of("float[3,8,6] x", "y = MatMul(w, x)", w=(4, 8)),
        1,
    ),
    "a chain through scratch memory": (
        model_of(
            "float[4,8] x", "p = MatMul(x, u) q = Relu(p) y = MatMul(q, w)", u=(8, 10), w=(10, 6)
        ),
        2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_plans_compute_what_the_model_says(name: str) -> None:
    model, steps = CASES[name]
    plan, result, truth = run(model)
    assert len(plan["steps"]) == steps
    np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ("y = Sigmoid(p)", "Sigmoid: cuBLAS takes only matrix products, with a bias"),
        ("q = Relu(p) y = Add(q, b)", "Add:"),
    ],
)
def test_what_fits_in_no_epilogue_is_refused(nodes: str, says: str) -> None:
    model = model_of("float[4,8] x", f"p = MatMul(x, w) {nodes}", w=(8, 6), b=(6,))
    with pytest.raises(UnsupportedError, match=says):
        run(model)


def test_a_batch_broadcast_along_some_axes_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="some of its axes"):
        layout_of((2, 1, 4, 8), (2, 3, 8, 6), (2, 3, 4, 6))


def test_what_a_device_chose_is_taken_over_by_later_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all products of these sizes, wherever their operands lie, on such a device."""
    monkeypatch.setattr(kept_files, "_folder", lambda: tmp_path)
    timed: list[int] = []

    def choose(symbol: str, plan: dict[str, Any], weights: bytes) -> dict[str, Any]:
        unknown = [step for step in plan["steps"] if "algorithm" not in step]
        timed.append(len(unknown))
        for step in unknown:
            step["algorithm"] = f"{step['n']:x}"
        return plan

    cublas: Any = CublasToolchain()
    monkeypatch.setattr(cublas, "version", lambda: "13")
    monkeypatch.setattr(cublas, "create", choose)
    monkeypatch.setattr(cublas, "unpack", lambda plan: ("", plan, b""))

    def made(nodes: str, device: str = "H200") -> list[str]:
        known = CudaProbe((CudaDevice(0, device, (9, 0), 1 << 37, 1 << 25, 13000),))
        monkeypatch.setattr(cuda, "cuda_probe", lambda: known)
        model = model_of("float[4,8] x", nodes, u=(8, 6), w=(6, 8), b=(8,))
        (instance,) = cublas.instances(Target.cuda("sm_90a"), "float32")
        operators = tuple(range(len(model.graph.operators)))
        plan = cublas.compile(function_of(model, instance, operators, "candidate"))
        return [step["algorithm"] for step in plan["steps"]]

    assert made("p = MatMul(x, u) y = MatMul(p, w)") == ["6", "8"]
    assert made("p = MatMul(x, u) q = MatMul(p, w) y = Add(q, b)") == ["6", "8"]
    assert made("y = MatMul(x, u)") == ["6"]
    assert made("y = MatMul(x, u)", device="H100") == ["6"]
    assert timed == [2, 1, 0, 1]  # another epilogue and another device are other choices
