"""CUTLASS's kernel libraries and the module that runs them, as far as no device is needed."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from collage_engine.lowering.extract import function_of
from collage_engine.machine.cuda import cuda_probe
from collage_engine.model.importer import ImportedModel
from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import Target
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.cutlass import families, headers, library
from collage_engine.toolchains.cutlass.families import Family, Share
from collage_engine.toolchains.registry import get
from collage_engine.toolchains.runtime.nvcc import find_nvcc
from tests.device_codegen.cuda_plans import model_of, node, normal

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
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "batch")),
        *((f"stride_{name}", ctypes.c_int64) for name in "abcd"),
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
                "groups",
                "heads",
                "queries",
                "keys",
                "head_size",
                "head_size_v",
                "causal",
            )
        ),
        *(
            (f"{name}_{what}", ctypes.c_int64)
            for name in ("q", "k", "v", "mask")
            for what in ("row", "head", "batch")
        ),
        *((name, ctypes.c_float) for name in ("scale", "source_factor", "low", "high")),
        *((name, ctypes.c_void_p) for name in ("a", "b", "c", "bias", "v", "d")),
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


def product(m: int, n: int, k: int, batch: int = 1, **strides: int) -> Problem:
    problem = Problem(m=m, n=n, k=k, batch=batch, **strides)
    problem.a = problem.b = problem.c = problem.bias = problem.d = ADDRESS
    return problem


def answers(table: Table, problem: Problem) -> list[str]:
    """What each kernel says to a problem."""
    return [
        table.status(table.kernels[i].can_implement(ctypes.byref(problem))).decode()
        for i in range(table.count)
    ]


def test_a_library_lists_its_kernels_and_says_which_sizes_they_take() -> None:
    family = Family("gemm", "float16", "columns", "relu", 8)
    tiles = families.HALF_TILES[-1:]
    share = Share(family, tiles)
    path = library.build(share, "sm_80")
    table = table_of(path)
    assert (table.abi, table.family, table.version) == (
        2,
        family.name.encode(),
        headers.version().encode(),
    )
    assert [table.kernels[i].name.decode() for i in range(table.count)] == [t.name for t in tiles]
    kernel, tile = table.kernels[0], tiles[0]
    assert (kernel.m, kernel.n, kernel.k, kernel.stages) == (tile.m, tile.n, tile.k, tile.stages)
    operands = (tile.m + tile.n) * tile.k * 2 * tile.stages
    assert operands <= kernel.shared_bytes <= operands + 4096
    assert answers(table, product(100, 48, 64)) == ["Success"]
    assert answers(table, product(1, 8, 8, batch=12)) == ["Success"]
    assert answers(table, product(100, 48, 60)) == ["Error Misaligned Operand"]
    assert answers(table, product(100, 46, 64)) == ["Error Misaligned Operand"]
    before = path.stat().st_mtime_ns
    assert library.build(share, "sm_80") == path
    assert path.stat().st_mtime_ns == before
    assert library.file_name(share, "sm_90a") != path.name


def test_images_that_are_too_large_or_misaligned_are_refused() -> None:
    family = Family("conv", "float16", "columns", "none", 2)
    table = table_of(library.build(Share(family, families.HALF_TILES[-1:]), "sm_80"))

    def problem(channels: int, images: int = 1) -> Problem:
        made = Problem(
            batch=1,
            images=images,
            height=56,
            width=56,
            channels=channels,
            filters=16,
            kernel_h=3,
            kernel_w=3,
            out_h=28,
            out_w=28,
            pad_h=1,
            pad_w=1,
            stride_h=2,
            stride_w=2,
            dilation_h=1,
            dilation_w=1,
            groups=1,
        )
        made.a = made.b = made.d = ADDRESS
        return made

    assert answers(table, problem(6)) == ["Success"]
    assert answers(table, problem(3)) != ["Success"]
    assert answers(table, problem(64, images=8000)) == ["Error Invalid Problem"]


@LONG
@pytest.mark.slow
def test_hopper_kernels_compile_and_answer() -> None:
    family = Family("gemm", "float16", "rows", "gelu_tanh", 8)
    tiles = families.WIDE_HALF_TILES[-1:]
    table = table_of(library.build(Share(family, tiles), "sm_90a"))
    assert table.kernels[0].name.decode() == tiles[0].name
    assert table.kernels[0].stages >= 3
    assert answers(table, product(512, 768, 3072)) == ["Success"]
    assert answers(table, product(512, 768, 3070)) != ["Success"]
    batch = {f"stride_{name}": 64 * 64 for name in "abcd"}
    assert answers(table, product(64, 64, 64, 12, **batch)) == ["Success"]
    batch["stride_a"] = 0  # one left matrix for all
    assert answers(table, product(64, 64, 64, 12, **batch)) == ["Error Not Supported"]


def first(share: Share) -> Share:
    return Share(share.family, share.tiles[:1])


def attention(width: int, keys: int = 64) -> Problem:
    steps = {"row": width, "head": width * keys, "batch": width * keys * 12}
    made = Problem(
        batch=2,
        heads=12,
        queries=100,
        keys=keys,
        head_size=width,
        head_size_v=width,
        scale=0.125,
        **{f"{name}_{what}": step for name in "qkv" for what, step in steps.items()},
    )
    made.a = made.b = made.v = made.d = ADDRESS
    return made


@LONG
@pytest.mark.slow
def test_every_kind_of_kernel_compiles_and_answers() -> None:
    """One tile of each: 8 bits, groups, attention, Hopper's convolution."""

    def table(family: Family, architecture: str = "sm_80") -> Table:
        share = first(family.shares(architecture)[-1])
        return table_of(library.build(share, architecture))

    small = table(Family("gemm", "uint8", "columns", "none", 16, "int8"))
    assert answers(small, product(100, 48, 64)) == ["Success"]
    assert answers(small, product(100, 48, 60)) == ["Error Misaligned Operand"]
    image = Problem(
        batch=1,
        images=2,
        height=14,
        width=14,
        channels=64,
        filters=64,
        kernel_h=3,
        kernel_w=3,
        out_h=14,
        out_w=14,
        pad_h=1,
        pad_w=1,
        stride_h=1,
        stride_w=1,
        dilation_h=1,
        dilation_w=1,
        groups=1,
    )
    image.a = image.b = image.d = ADDRESS
    assert answers(table(Family("conv", "int8", "columns", "none", 4, "float32")), image) == [
        "Success"
    ]
    assert answers(table(Family("conv", "float16", "columns", "relu", 8), "sm_90a"), image) == [
        "Success"
    ]
    image.groups = 16
    groups = table(Family("group", "float16", "columns", "relu", 2))
    assert answers(groups, image) == ["Success"]
    image.c = ADDRESS
    assert answers(groups, image) == ["Error Not Supported"]
    attend = table(Family("attention", "float16", "rows", "none", 8))
    assert answers(attend, attention(64)) == ["Success"]
    assert answers(attend, attention(60)) == ["Error Misaligned Operand"]
    assert answers(attend, attention(128)) == ["Error Invalid Problem"]


def test_what_nvcc_refuses_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLLAGE_BUILD_DIR", str(tmp_path))
    monkeypatch.setattr(library, "source_of", lambda *_: "nonsense;")
    (share,) = Family("gemm", "float32", "rows", "none", 1).shares("sm_80")
    with pytest.raises(ToolchainError, match=r"nvcc refuses CUTLASS's kernels: .*error"):
        library.build(share, "sm_80")
    assert not list(tmp_path.rglob("*.so"))


def network() -> ImportedModel:
    """A convolution with plain borders, in float32."""
    return model_of(
        [node("Conv", ["x", "w", "b"], "p", pads=[1, 1, 1, 1]), node("Relu", ["p"], "y")],
        {"x": (1, 4, 6, 5)},
        {"w": normal(3, 4, 3, 3), "b": normal(3)},
        (1, 3, 6, 5),
        TensorProto.FLOAT,
    )


def whole(model: ImportedModel) -> Function:
    (instance,) = get("cutlass").instances(Target.cuda("sm_80"), "float32")
    return function_of(model, instance, tuple(range(len(model.graph.operators))), "candidate")


@no_device
def test_a_module_is_made_saved_and_loaded_without_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tvm_ffi

    monkeypatch.setattr(families, "SIMT_TILES", families.SIMT_TILES[-2:])
    toolchain: Any = get("cutlass")
    function = whole(network())
    module = toolchain.compile(function)
    steps = toolchain.inside(module)["steps"]
    assert [s["what"] for s in steps] == ["transpose", "convolution", "transpose"]
    assert steps[1]["kernels"] == 2
    symbol, plan, weights = toolchain.unpack(module)
    assert symbol == "candidate"
    assert len(weights) >= 3 * 4 * 9 * 4 + 3 * 4

    load = tvm_ffi.get_global_func(f"ffi.Module.load_from_bytes.{module.kind}")
    again = load(bytes(module["collage.save"]()))
    assert toolchain.unpack(again) == (symbol, plan, weights)
    assert json.loads(str(again["collage.inside"]()))["library"].startswith("CUTLASS ")
    with pytest.raises(Exception, match="CUDA device"):
        again["candidate"](np.zeros((1, 4, 6, 5), np.float32), np.zeros((1, 3, 6, 5), np.float32))

    # A choice that came with the plan: no other kernel is a candidate.
    chosen = families.SIMT_TILES[0].name
    plan["steps"][1]["kernel"] = chosen
    described = toolchain.inside(toolchain.create(symbol, plan, weights))["steps"][1]
    assert (described["algorithm"], described["kernels"]) == (chosen, 1)
    # One that the library does not have is forgotten.
    plan["steps"][1]["kernel"] = "sm80_1x1x1_1"
    described = toolchain.inside(toolchain.create(symbol, plan, weights))["steps"][1]
    assert "algorithm" not in described and described["kernels"] == 2
    plan["steps"][1]["libraries"][0]["file"] = "libcollage_cutlass_none.so"
    with pytest.raises(ToolchainError, match="no kernels"):
        toolchain.create(symbol, plan, weights)

    names = {lib.name: lib for lib in toolchain.libraries_for([function])}
    (kernels,) = (n for n in names if "conv_float32_columns_relu_a1_sm80" in n)
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
