"""Conversions between formats on an NVIDIA device: the kernel's source run on the CPU; modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from collage_engine.lowering.convert import ValuesAtHand
from collage_engine.machine.cuda import cuda_target
from collage_engine.records.format import NHWC, PLAIN, conversion_constant
from collage_engine.records.graph import TensorType
from collage_engine.store.keys import KeyContext
from collage_engine.toolchains.tvm.conversion import conversion
from collage_engine.transitions.conversions import conversion_constants
from tests.device_codegen.cuda_on_cpu.emulator import Kernel
from tests.device_codegen.test_cuda_products import headers

KIND = TensorType((2, 45, 5, 7), "float32")


@pytest.mark.skipif(headers() is None, reason="no CUDA headers here")
@pytest.mark.parametrize("target", [NHWC, PLAIN])
def test_every_element_arrives(target: str, tmp_path: Path) -> None:
    """Sizes that no square divides; threads in either order."""
    source = PLAIN if target == NHWC else NHWC
    kernel = conversion(KIND, source, target, 1, "sm_80").function
    emulated = Kernel(kernel, tmp_path, include=headers() or "")
    image = np.random.default_rng(0).standard_normal(KIND.shape).astype(np.float32)
    last = np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    given, wanted = (image, last) if target == NHWC else (last, image)
    for downwards in (False, True):
        found = np.full(wanted.shape, np.nan, np.float32)
        emulated([given.copy(), found], downwards=downwards)
        assert np.array_equal(found, wanted)


class Graph:
    """One value."""

    nodes = (type("Node", (), {"type": KIND})(),)


def test_a_module_for_a_device_converts_with_a_kernel_of_that_device() -> None:
    """A kernel for the processor among kernels for the device would not build."""
    builder = relax.BlockBuilder()
    value = relax.Var("x", relax.TensorType(KIND.shape, KIND.dtype))
    with builder.function("main", [value]):
        with builder.dataflow():
            at_hand = ValuesAtHand(builder, Graph(), 1, "sm_90a")  # type: ignore[arg-type]
            at_hand.put(0, value)
            result = builder.emit_output(at_hand.get(0, NHWC))
        builder.emit_func_output(result)
    module = builder.get()
    built = relax.build(module, cuda_target("sm_90a"))
    sources = []

    def collect(of: tvm.runtime.Module) -> None:
        for child in of.imports:
            if str(child.kind) == "cuda":
                sources.append(str(child.inspect_source()))
            collect(child)

    collect(built.mod)
    assert len(sources) == 1 and "__global__" in sources[0]
    assert at_hand.conversions == [(0, PLAIN, NHWC)]


def canned(request: object) -> dict[str, float]:
    """A child that answers by the request's architecture."""
    us = 3.0 if request.architecture == "sm_90a" else 40.0  # type: ignore[attr-defined]
    return {conversion_constant(*each): us for each in request.conversions}  # type: ignore[attr-defined]


def test_the_devices_own_kernels_are_measured() -> None:
    context = KeyContext(tvm_version="t", target="cuda:sm_90a", fingerprint="f")
    wanted = [(KIND, PLAIN, NHWC)]
    found = conversion_constants(
        wanted, 1, context, job=f"{__name__}:canned", architecture="sm_90a"
    )
    assert found == {conversion_constant(*wanted[0]): 3.0}
