"""CUTLASS's kernel libraries and the module that runs them, as far as no device is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage_engine.lowering.extract import function_of
from collage_engine.machine.cuda import cuda_probe
from collage_engine.model.importer import ImportedModel
from collage_engine.records.toolchain import Target
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.cutlass import library
from collage_engine.toolchains.cutlass.library import find_nvcc
from collage_engine.toolchains.registry import get
from tests.device_codegen.cuda_plans import model_of, normal

pytestmark = [
    pytest.mark.skipif(find_nvcc() is None, reason="no nvcc here"),
    pytest.mark.timeout(1800),  # of compiling, on a slow, busy machine
]
no_device = pytest.mark.skipif(bool(cuda_probe().devices), reason="a device is here")


def network() -> ImportedModel:
    """A convolution in half precision."""
    return model_of(
        "float16[1,8,6,5] x",
        "p = Conv<pads=[1, 1, 1, 1]>(x, w, b) y = Relu(p)",
        w=normal(16, 8, 3, 3, dtype="float16"),
        b=normal(16, dtype="float16"),
    )


def whole(model: ImportedModel) -> Function:
    (instance,) = get("cutlass").instances(Target.cuda("sm_80"), "float32")
    return function_of(model, instance, tuple(range(len(model.graph.operators))), "candidate")


@no_device
def test_a_module_is_made_saved_and_loaded_without_a_device() -> None:
    import tvm_ffi

    toolchain: Any = get("cutlass")
    function = whole(network())
    module = toolchain.compile(function)
    steps = toolchain.inside(module)["steps"]
    assert [s["what"] for s in steps] == ["transpose", "convolution", "transpose"]
    symbol, plan, weights = toolchain.unpack(module)
    assert symbol == "candidate"
    assert len(weights) >= 16 * 8 * 9 * 2 + 16 * 2

    load = tvm_ffi.get_global_func(f"ffi.Module.load_from_bytes.{module.kind}")
    again = load(bytes(module["collage.save"]()))
    assert toolchain.unpack(again) == (symbol, plan, weights)
    assert json.loads(str(again["collage.inside"]()))["library"] == "CUTLASS"
    with pytest.raises(Exception, match="CUDA device"):
        again["candidate"](np.zeros((1, 8, 6, 5), np.float16), np.zeros((1, 16, 6, 5), np.float16))

    # A choice that came with the plan.
    chosen = "64x64x64_4"
    plan["steps"][1]["kernel"] = chosen
    described = toolchain.inside(toolchain.create(symbol, plan, weights))["steps"][1]
    assert described["algorithm"] == chosen
    # One that the library does not have is forgotten.
    plan["steps"][1]["kernel"] = "1x1x1_1"
    described = toolchain.inside(toolchain.create(symbol, plan, weights))["steps"][1]
    assert "algorithm" not in described
    plan["steps"][1]["library"] = "libcollage_cutlass_none.so"
    with pytest.raises(ToolchainError, match="no kernels"):
        toolchain.create(symbol, plan, weights)

    names = {lib.name: lib for lib in toolchain.libraries_for([function])}
    (kernels,) = (n for n in names if "float16_relu" in n)
    assert not names[kernels].linked and names[kernels].licence == "BSD-3-Clause"
    assert {lib.name for lib in toolchain.runtime_libraries()} == names.keys() - {kernels}


@no_device
def test_probing_says_that_it_builds_and_compiles_no_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLLAGE_BUILD_DIR", str(tmp_path))
    state = get("cutlass").probe()
    assert (state.available, state.builds) == (False, True)
    assert state.version == library.version()
    assert not list(tmp_path.iterdir())
