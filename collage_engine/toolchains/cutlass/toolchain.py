"""Runs convolutions with fused epilogues by CUTLASS, kernels chosen by time.

The steps of a plan are convolutions of images stored N, H, W, C, and transposed images.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collage_engine.machine.cuda import generation
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import anything, constant, op
from collage_engine.records.format import NHWC, differs, stored_shape
from collage_engine.records.graph import Node, OperatorSet, Value
from collage_engine.records.operators import onnx_type
from collage_engine.records.toolchain import (
    RuntimeLibrary,
    Target,
    ToolchainAbout,
    ToolchainInstance,
)
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.cutlass import library
from collage_engine.toolchains.cutlass.library import Family
from collage_engine.toolchains.runtime import chains
from collage_engine.toolchains.runtime.builder import RuntimeSource
from collage_engine.toolchains.runtime.cuda import CudaToolchain
from collage_engine.toolchains.runtime.places import Places
from collage_engine.toolchains.runtime.products import Dialect, Product, pads, per_axis

TYPES = ("float16", "bfloat16")
"""Element types that the kernels read."""
ALIGNMENT = 8
"""Channels of which images and filters have a multiple: elements of 2 bytes that one asynchronous
copy of 16 bytes moves (PTX ISA, ``cp.async``)."""
MOST_TAPS = 32
"""Taps of a filter along an axis, at most (``kFilterPositionsPerMask`` of CUTLASS's iterators)."""
LARGEST = 1 << 31
"""Bytes of a tensor have to stay below it: the kernels count in 32 bits."""

Place = dict[str, Any]


def check(graph: DataflowGraph, node: Node) -> None:
    """Check that the kernels compute a convolution.

    Raises:
        UnsupportedError: They do not, for the reason in the message.
    """
    title, attributes = onnx_type(node.op), node.attributes
    given, filters = (graph.values[i].type for i in node.inputs)
    kinds = {given.dtype, filters.dtype, node.type.dtype}
    rows = (given.shape[1], node.type.shape[1])
    if len(kinds) != 1 or node.type.dtype not in TYPES:
        raise UnsupportedError(
            f"{title}: CUTLASS's kernels here take no {' by '.join(sorted(kinds))}"
        )
    if 0 in node.type.shape:
        raise UnsupportedError(f"{title}: an empty result")
    if int(attributes.get("groups", 1)) != 1:
        raise UnsupportedError(f"{title}: CUTLASS's kernels here have no groups")
    if (attributes["data_layout"], attributes["kernel_layout"]) != ("NCHW", "OIHW"):
        raise UnsupportedError(f"{title}: images or filters in another layout than ONNX's")
    if any(row % ALIGNMENT for row in rows):
        raise UnsupportedError(
            f"{title}: rows of {rows[0]} and {rows[1]} elements, which are no multiples of "
            f"{ALIGNMENT}"
        )
    if max(filters.shape[2:]) > MOST_TAPS:
        raise UnsupportedError(f"{title}: filters of more than {MOST_TAPS} taps along an axis")
    if max(given.bytes, filters.bytes, node.type.bytes) >= LARGEST:
        raise UnsupportedError(f"{title}: tensors of more than 31 bits")


def steps(places: Places, product: Product, precision: str) -> list[dict[str, Any]]:
    """Return the steps of a convolution: images are turned before and after it where need be."""
    graph, node = places.graph, product.anchor
    filters = places.constants(product.bindings["right"]).transpose(0, 2, 3, 1)
    written: list[dict[str, Any]] = []
    step: dict[str, Any] = {
        "op": "conv",
        "name": node.name or f"{node.op} {node.index}",
        "dtype": node.type.dtype,
        "epilogue": product.epilogue,
        "sizes": sizes_of(node, graph.values[product.bindings["left"]].type.shape, filters.shape),
        "a": _image(places, product.bindings["left"], written),
        "b": places.constant(filters),
    }
    if product.bias is not None:
        step["bias"] = places.read(product.bias)
    if product.residual is not None:
        step["c"] = _image(places, product.residual, written)
    written.append(step)
    result = graph.values[product.result]
    if not differs(result.type):
        step["d"] = places.write(result.index)
        return written
    step["d"] = places.turned[result.index] = places.temporary(result.type.bytes)
    if result.index in places.known:  # it leaves the function
        n, c, h, w = result.type.shape
        target = places.write(result.index)
        written.append(_transpose(places, result, step["d"], target, (n, h * w, c)))
    return written


def _image(places: Places, index: int, steps: list[dict[str, Any]]) -> Place:
    """Return the place of a value of axes N, C, H, W, stored as N, H, W, C.

    Where it is stored otherwise, a step that transposes it is appended to ``steps``.
    """
    value = places.graph.values[index]
    if index not in places.turned:
        given = places.read(index)
        if not differs(value.type):
            return given
        places.turned[index] = places.temporary(value.type.bytes)
        n, c, h, w = value.type.shape
        steps.append(_transpose(places, value, given, places.turned[index], (n, c, h * w)))
    return places.turned[index]


def _transpose(
    places: Places, value: Value, source: Place, target: Place, sizes: tuple[int, int, int]
) -> dict[str, Any]:
    """Return the step that exchanges rows and columns of a batch of matrices of some sizes."""
    node = places.graph.operator_of(value.index)
    name = value.name or "an input" if node is None else node.name or node.op
    return {
        "op": "transpose",
        "name": f"{name}, other order of axes",
        "dtype": value.type.dtype,
        **dict(zip(("batch", "rows", "columns"), sizes, strict=True)),
        "a": source,
        "d": target,
    }


def sizes_of(node: Node, shape: tuple[int, ...], filters: tuple[int, ...]) -> list[int]:
    """Return the sizes of a convolution, in the order of the runtime's ``CollageProblem``.

    Args:
        node: The convolution.
        shape: The shape of its images.
        filters: The shape of its filters: filters, rows, columns, channels.
    """
    _, *size_out, _ = stored_shape(tuple(node.type.shape), NHWC)
    pad, _ = pads(node.attributes.get("padding", 0), 2)
    stride = per_axis(node.attributes.get("strides", 1), 2)
    dilation = per_axis(node.attributes.get("dilation", 1), 2)
    return [*stored_shape(shape, NHWC), *filters[:3], *size_out, *pad, *stride, *dilation]


DIALECT = Dialect(
    name="CUTLASS",
    takes="convolutions of images by constant filters",
    anchor=op("nn.conv2d", anything("left"), constant("right"), name="anchor"),
    channel_axis=1,
    epilogues={
        "relu": lambda x: op("nn.relu", x),
        "silu": lambda x: op("nn.silu", x) | chains.silu(x),
    },
    check=check,
    steps=steps,
)
"""Convolutions with bias, residual sum and activation."""


FIRST = 80
"""Architecture (Ampere) that CUTLASS's 2.x kernels with asynchronous copies are for (CUTLASS's
``cutlass/arch/arch.h``, ``Sm80``)."""


class CutlassToolchain(CudaToolchain):
    """Convolutions in half precision with what follows them, by CUTLASS's 2.x templates.

    Kernels are compiled per family when a partition first needs them; probing compiles none.
    """

    about = ToolchainAbout(
        name="cutlass",
        title="CUTLASS",
        licence="BSD-3-Clause",
        targets=("cuda",),
        whole_model=False,
        install="install the CUDA toolkit (nvcc), and pip install 'collage-explorer[cuda]'",
        colour="#9cec74",
        letters="CU",
        pattern="dots",
    )
    depends = ("collage_engine.partition.patterns",)
    dialect = DIALECT
    pattern = DIALECT.pattern
    main = Path(__file__).parent / "src" / "cutlass_module.cc"
    choice = "kernel"

    def version(self) -> str:
        """Return the version of the library that is installed here."""
        return library.version()

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        library.need_nvcc()
        return super().source()

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        """Return its configurations; see ``Toolchain.instances``."""
        if generation(target.architecture) < FIRST:
            return ()  # older than its kernels
        return super().instances(target, precision)

    def rounds_to(self, architecture: str, precision: str) -> str | None:
        """Return None: its kernels read half precision only, as the model has it."""
        return None

    def precompile(
        self,
        graph: DataflowGraph,
        instance: ToolchainInstance,
        sets: Sequence[OperatorSet],
        now: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        """Compile the kernel libraries that these candidates choose from."""
        wanted: set[Family] = set()
        for calls in dict.fromkeys(sets):
            with contextlib.suppress(UnsupportedError):
                plan = self.dry_plan(graph, calls)
                wanted.update(self.families(plan, instance.architecture).values())
        library.build_many(wanted, now, stop)

    def families(self, plan: dict[str, Any], architecture: str) -> dict[str, Family]:
        """Return the families of kernels that a plan needs, by activation."""
        steps = [step for step in plan["steps"] if "epilogue" in step]
        return {s["epilogue"]: Family(s["dtype"], s["epilogue"], architecture) for s in steps}

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """Return the plan and the weights, after compiling the libraries that are missing."""
        plan, weights = super().plan(function)
        built = self.kernels(plan, function.instance.architecture)
        for step in plan["steps"]:
            # Any of them turns images.
            step["library"] = built[step.get("epilogue", min(built))].name
        return plan, weights

    def kernels(self, plan: dict[str, Any], architecture: str) -> dict[str, Path]:
        """Return the libraries that a plan needs, open in this process, by activation."""
        families = self.families(plan, architecture)
        kernels = {activation: library.build(family) for activation, family in families.items()}
        for path in kernels.values():
            library.open_library(path)
        return kernels

    def libraries_for(self, functions: Sequence[Function]) -> tuple[RuntimeLibrary, ...]:
        """Return the runtime, and the kernels among which these functions may choose."""
        libraries: dict[str, RuntimeLibrary] = {}
        for function in functions:
            plan = self.dry_plan(function.graph, function.nodes)
            for path in self.kernels(plan, function.instance.architecture).values():
                libraries[path.name] = self.carried(path)
        return (*self.runtime_libraries(), *libraries.values())
