"""Convolutions with few channels a group on CUDA: their kernels' source, run on the CPU."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage_engine.kernels.cuda.direct.plan import (
    DirectPlan,
    DirectProblem,
    direct_chosen,
    direct_plans,
)
from collage_engine.kernels.cuda.direct.reference import NotedDirect
from collage_engine.kernels.cuda.epilogue import note_on
from collage_engine.kernels.cuda.legalize import Products
from collage_engine.kernels.cuda.lowering import schedule_of
from collage_engine.kernels.scheduler import SCHEDULE
from collage_engine.kernels.tuner import difference
from collage_engine.lowering.cubin import compile_cubin
from collage_engine.machine.cuda import cuda_target
from tests.device_codegen.cuda_on_cpu.emulator import Kernel, source_of
from tests.device_codegen.test_cuda_products import (
    LONG,
    TOLERANCES,
    conv,
    headers,
    legal,
    needs_compiler,
    needs_headers,
    run,
)

CASES: dict[str, Any] = {
    "depthwise, odd, residual": lambda d: conv(
        d, (1, 6, 9, 11), (6, 1, 3, 3), residual=True, padding=1, groups=6
    ),
    "a batch, vectors, tiles that overlap": lambda d: conv(
        d, (2, 16, 20, 72), (16, 1, 3, 3), padding=1, groups=16
    ),
    "strided, dilated, uneven pads": lambda d: conv(
        d,
        (1, 8, 23, 18),
        (8, 1, 5, 3),
        strides=(2, 3),
        dilation=(1, 2),
        padding=(2, 0, 1, 3),
        groups=8,
    ),
    "vectors, stride two, 5x5": lambda d: conv(
        d, (1, 8, 24, 24), (8, 1, 5, 5), strides=2, padding=2, groups=8
    ),
    "two rows a channel": lambda d: conv(d, (1, 6, 7, 7), (12, 1, 3, 3), padding=1, groups=6),
    "small groups": lambda d: conv(
        d, (1, 32, 14, 14), (32, 4, 3, 3), padding=1, groups=8, residual=True
    ),
    "small groups, a batch, 1x1": lambda d: conv(d, (3, 12, 5, 9), (24, 2, 1, 1), groups=6),
    "few rows, many channels": lambda d: conv(d, (1, 130, 12, 12), (3, 130, 3, 3), padding=1),
    "one axis": lambda d: conv(d, (1, 10, 33), (10, 1, 7), padding=(3, 3), groups=10),
    "three axes": lambda d: conv(
        d, (1, 4, 5, 6, 7), (4, 1, 3, 3, 3), padding=1, strides=(2, 1, 1), groups=4
    ),
}
DTYPES = {"plain": "float32", "f16": "float16", "bf16": "bfloat16"}
DEFAULT = {
    ("f16", "strided, dilated, uneven pads"),
    ("plain", "a batch, vectors, tiles that overlap"),
    ("plain", "small groups"),
}


def shape(**others: Any) -> DirectProblem:
    known: dict[str, Any] = {
        "batch": 1,
        "groups": 144,
        "rows": 1,
        "channels": 1,
        "image": (1, 56, 56),
        "out": (1, 56, 56),
        "taps": (1, 3, 3),
        "strides": (1, 1, 1),
        "dilation": (1, 1, 1),
        "before": (0, 1, 1),
        "dtype": "float32",
    }
    return DirectProblem(**(known | others))


def planned(module: Any, plan: DirectPlan | None, dtype: str = "float32") -> Any:
    """The table, the function and what is noted of it."""
    plans = direct_chosen if plan is None else lambda *_: plan
    products = Products("sm_80", "float32", direct_plans=plans)
    (found,) = [
        f for f, _, _ in legal(module, products.table()) if note_on(f, "direct_c", NotedDirect)
    ]
    noted = note_on(found, "direct_c", NotedDirect)
    assert noted is not None
    return products.table(), found, noted


def check(case: Any, kind: str, plan: DirectPlan | None, folder: Path) -> None:
    """Threads in either order, against TVM's own legalisation in single precision."""
    plain = case("float32")
    numbers = np.random.default_rng(3)
    inputs = [
        numbers.standard_normal([int(e) for e in p.ty.shape.values]).astype(np.float32)
        for p in plain["main"].params
    ]
    truth = run(plain, {}, inputs, None)
    table, function, _ = planned(case(DTYPES[kind]), plan)
    scheduled = schedule_of(function, cuda_target("sm_80"), "direct")
    assert scheduled.attrs[SCHEDULE] == "Direct"
    emulated = Kernel(scheduled, folder, include=headers() or "")
    for downwards in (False, True):
        given = [a.astype(DTYPES[kind]) for a in inputs]

        def kernel(_: Any, arrays: Any, downwards: bool = downwards) -> None:
            emulated(arrays, downwards=downwards)

        found = run(case(DTYPES[kind]), table, given, kernel)
        assert difference(truth, found.astype(np.float32)) < TOLERANCES[kind]


def test_plans_are_right_for_their_shapes() -> None:
    """Whole images of small planes, vectors where rows allow them, no more than a block has."""
    assert direct_chosen(shape(), 132) is not None
    for each in (
        shape(),
        shape(image=(1, 7, 7), out=(1, 7, 7), groups=960),
        shape(dtype="float16"),
        shape(groups=32, rows=4, channels=4),
        shape(groups=1, rows=3, channels=512),
        shape(image=(1, 112, 112), taps=(1, 7, 7), strides=(1, 2, 2), before=(0, 3, 3)),
    ):
        plans = list(direct_plans(each))
        assert plans and direct_chosen(each, 132) in plans
        for plan in plans:
            assert each.groups % plan.groups == each.channels % plan.deep == 0
            assert each.rows % plan.row == 0
            assert plan.threads(each) <= 512 and plan.shared_bytes(each) <= 48 << 10
    tall = DirectPlan(1, 1, 8, 14, 2, 4, 1)
    assert tall.vector(shape()) == 4 and tall.shift(shape()) == 3
    assert tall.vector(shape(image=(1, 7, 7), out=(1, 7, 7))) == 1


@needs_compiler
def test_a_depthwise_kernel_reads_vectors_and_compiles() -> None:
    case = conv("float32", (1, 32, 56, 56), (32, 1, 3, 3), padding=1, groups=32)
    _, function, noted = planned(case, None)
    assert noted.plan.vector(noted.shape) == 4
    kernel = schedule_of(function, cuda_target("sm_90a"), "depthwise")
    assert kernel.attrs[SCHEDULE] == "Direct"
    source = source_of(kernel, "sm_90a")
    assert "*(float4*)(direct_a_shared_ptr" in source and "max(" in source
    assert compile_cubin(source, "sm_90a")[:4] == b"\x7fELF"


@needs_headers
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", DTYPES)
def test_the_kernels_source_computes_what_the_unscheduled_function_does(
    kind: str, name: str, tmp_path: Path
) -> None:
    if not LONG and (kind, name) not in DEFAULT:
        pytest.skip("COLLAGE_LONG_TESTS=1 runs every pair")
    check(CASES[name], kind, None, tmp_path)


@needs_headers
@pytest.mark.skipif(not LONG, reason="COLLAGE_LONG_TESTS=1 runs other plans")
@pytest.mark.parametrize("name", CASES)
def test_other_plans_compute_the_same(name: str, tmp_path: Path) -> None:
    _, _, noted = planned(CASES[name]("float32"), None)
    plans = sorted(direct_plans(noted.shape), key=str)
    for number, plan in enumerate(random.Random(name).sample(plans, min(5, len(plans)))):
        folder = tmp_path / str(number)
        folder.mkdir()
        check(CASES[name], "plain", plan, folder)
