"""CUTLASS's kernel libraries and the module that runs them, as far as no device is needed."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage_engine.lowering.extract import function_of
from collage_engine.machine.cuda import cuda_probe
from collage_engine.model.importer import ImportedModel
from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import Target
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.cutlass import families, headers, library
from collage_engine.toolchains.cutlass.families import Family
from collage_engine.toolchains.registry import get
from collage_engine.toolchains.runtime.nvcc import find_nvcc
from tests.device_codegen.cuda_plans import model_of, normal

pytestmark = [
    pytest.mark.skipif(find_nvcc() is None, reason="no nvcc here"),
    pytest.mark.timeout(1800),  # of compiling, on a slow, busy machine
]
LONG = pytest.mark.skipif(
    "COLLAGE_LONG_TESTS" not in os.environ,
    reason="takes minutes; run it with COLLAGE_LONG_TESTS=1",
)
no_device = pytest.mark.skipif(bool(cuda_probe().devices), reason="a device is here")


class Problem(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in (
                "images",
                "height",
                "width",
                "channels",
                "filters",
                "kernel_h",
                "kernel_w",
                "out_h",
                "out_w",
                "pad_h",
                "pad_w",
                "stride_h",
                "stride_w",
                "dilation_h",
                "dilation_w",
            )
        ),
        *((name, ctypes.c_void_p) for name in ("a", "b", "c", "bias", "d")),
    ]


class Kernel(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "stages", "shared_bytes")),
        ("can_implement", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Problem))),
        *((name, ctypes.c_void_p) for name in ("workspace", "create", "destroy", "prepare", "run")),
    ]


class Table(ctypes.Structure):
    _fields_ = [
        ("abi", ctypes.c_int32),
        ("family", ctypes.c_char_p),
        ("version", ctypes.c_char_p),
        ("count", ctypes.c_int32),
        ("kernels", ctypes.POINTER(Kernel)),
        ("status", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int32)),
    ]


def table_of(path: Path) -> Table:
    opened = library.open_library(path)
    opened.collage_cutlass_library.restype = ctypes.POINTER(Table)
    found: Table = opened.collage_cutlass_library().contents
    return found


ADDRESS = 1 << 20
"""Aligned as all of ours are; nothing is read there."""


def answers(table: Table, problem: Problem) -> list[str]:
    """What each kernel says to a problem."""
    return [
        table.status(table.kernels[i].can_implement(ctypes.byref(problem))).decode()
        for i in range(table.count)
    ]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tile: a fraction of the time."""
    monkeypatch.setattr(families, "TILES", families.TILES[-1:])


def test_a_library_lists_its_kernels_and_says_which_sizes_they_take(small: None) -> None:
    family = Family("float16", "relu", 2)
    path = library.build(family, "sm_80")
    table = table_of(path)
    assert (table.abi, table.family, table.version) == (
        4,
        family.name.encode(),
        headers.version().encode(),
    )
    tile = families.TILES[-1]
    assert [table.kernels[i].name.decode() for i in range(table.count)] == [tile.name]
    kernel = table.kernels[0]
    assert (kernel.m, kernel.n, kernel.k, kernel.stages) == (tile.m, tile.n, tile.k, tile.stages)
    operands = (tile.m + tile.n) * tile.k * 2 * tile.stages
    assert operands <= kernel.shared_bytes <= operands + 4096
    assert answers(table, images(6)) == ["Success"]
    assert answers(table, images(3)) != ["Success"]
    assert answers(table, images(64, count=8000)) == ["Error Invalid Problem"]
    before = path.stat().st_mtime_ns
    assert library.build(family, "sm_80") == path
    assert path.stat().st_mtime_ns == before
    assert library.file_name(family, "sm_90a") != path.name


def images(channels: int, count: int = 1) -> Problem:
    made = Problem(images=count, height=56, width=56, channels=channels, filters=16)
    made.kernel_h = made.kernel_w = 3
    made.out_h = made.out_w = 28
    made.pad_h = made.pad_w = made.dilation_h = made.dilation_w = 1
    made.stride_h = made.stride_w = 2
    made.a = made.b = made.d = ADDRESS
    return made


@LONG
@pytest.mark.slow
def test_bfloat16_compiles_and_answers(small: None) -> None:
    table = table_of(library.build(Family("bfloat16", "silu", 8), "sm_90a"))
    assert answers(table, images(64)) == ["Success"]


def test_what_nvcc_refuses_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLLAGE_BUILD_DIR", str(tmp_path))
    monkeypatch.setattr(library, "source_of", lambda *_: "nonsense;")
    family = Family("float16", "none", 2)
    with pytest.raises(ToolchainError, match=r"nvcc refuses CUTLASS's kernels: .*error"):
        library.build(family, "sm_80")
    assert not list(tmp_path.rglob("*.so"))


def network() -> ImportedModel:
    """A convolution in half precision."""
    return model_of(
        "float16[1,4,6,5] x",
        "p = Conv<pads=[1, 1, 1, 1]>(x, w, b) y = Relu(p)",
        w=normal(6, 4, 3, 3, dtype="float16"),
        b=normal(6, dtype="float16"),
    )


def whole(model: ImportedModel) -> Function:
    (instance,) = get("cutlass").instances(Target.cuda("sm_80"), "float32")
    return function_of(model, instance, tuple(range(len(model.graph.operators))), "candidate")


@no_device
def test_a_module_is_made_saved_and_loaded_without_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tvm_ffi

    monkeypatch.setattr(families, "TILES", families.TILES[-2:])
    toolchain: Any = get("cutlass")
    function = whole(network())
    module = toolchain.compile(function)
    steps = toolchain.inside(module)["steps"]
    assert [s["what"] for s in steps] == ["transpose", "convolution", "transpose"]
    assert steps[1]["kernels"] == 2
    symbol, plan, weights = toolchain.unpack(module)
    assert symbol == "candidate"
    assert len(weights) >= 6 * 4 * 9 * 2 + 6 * 2

    load = tvm_ffi.get_global_func(f"ffi.Module.load_from_bytes.{module.kind}")
    again = load(bytes(module["collage.save"]()))
    assert toolchain.unpack(again) == (symbol, plan, weights)
    assert json.loads(str(again["collage.inside"]()))["library"].startswith("CUTLASS ")
    with pytest.raises(Exception, match="CUDA device"):
        again["candidate"](np.zeros((1, 4, 6, 5), np.float16), np.zeros((1, 6, 6, 5), np.float16))

    # A choice that came with the plan: no other kernel is a candidate.
    chosen = families.TILES[-1].name
    plan["steps"][1]["kernel"] = chosen
    described = toolchain.inside(toolchain.create(symbol, plan, weights))["steps"][1]
    assert (described["algorithm"], described["kernels"]) == (chosen, 1)
    # One that the library does not have is forgotten.
    plan["steps"][1]["kernel"] = "1x1x1_1"
    described = toolchain.inside(toolchain.create(symbol, plan, weights))["steps"][1]
    assert "algorithm" not in described and described["kernels"] == 2
    plan["steps"][1]["library"] = "libcollage_cutlass_none.so"
    with pytest.raises(ToolchainError, match="no kernels"):
        toolchain.create(symbol, plan, weights)

    names = {lib.name: lib for lib in toolchain.libraries_for([function])}
    (kernels,) = (n for n in names if "conv_float16_relu_a2" in n)
    assert not names[kernels].linked and names[kernels].licence == "BSD-3-Clause"
    assert {lib.name for lib in toolchain.runtime_libraries()} == names.keys() - {kernels}


@no_device
def test_probing_says_that_it_builds_and_compiles_no_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLLAGE_BUILD_DIR", str(tmp_path))
    state = get("cutlass").probe()
    assert (state.available, state.builds) == (False, True)
    assert state.version == headers.version()
    assert not list(tmp_path.iterdir())
