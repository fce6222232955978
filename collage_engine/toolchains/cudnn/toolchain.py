"""Runs convolutions with what follows them, and attention, on NVIDIA devices, by cuDNN's graphs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import anything, constant, op
from collage_engine.records.graph import Node, TensorType
from collage_engine.records.operators import onnx_type
from collage_engine.records.toolchain import RuntimeLibrary, ToolchainAbout
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.cudnn import attention
from collage_engine.toolchains.runtime.builder import RuntimeSource
from collage_engine.toolchains.runtime.cuda import (
    LICENCE,
    CudaToolchain,
    cudart_library,
    find_file,
    nvrtc,
)
from collage_engine.toolchains.runtime.places import Places
from collage_engine.toolchains.runtime.products import (
    Dialect,
    Ints,
    Product,
    pads,
    per_axis,
    row_major,
)

TYPES = ("float32", "float16", "bfloat16")
"""Element types in which cuDNN computes."""
DECONVOLUTIONS = ("nn.conv2d_transpose", "nn.conv3d_transpose")
CONVOLUTIONS = ("nn.conv2d", "nn.conv3d", *DECONVOLUTIONS)
"""Relax operators that cuDNN computes by its convolution and backward-data functions."""
ACTIVATIONS = {
    "relu": "nn.relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "swish": "nn.silu",
    "gelu": "nn.gelu",
    "gelu_tanh": "nn.gelu_tanh",
    "clip": "clip",
    "leaky": "nn.leakyrelu",
}
"""The Relax operator of each activation, by the mode of cuDNN's pointwise operation; that of
``leaky`` is ReLU with a slope."""


def check(graph: DataflowGraph, node: Node) -> None:
    """Check that cuDNN has a convolution.

    Raises:
        UnsupportedError: It has none; the text says why.
    """
    title, attributes = onnx_type(node.op), node.attributes
    for index in (*node.inputs, node.index):
        kind = graph.values[index].type
        if kind.dtype not in TYPES:
            raise UnsupportedError(f"{title}: cuDNN computes no {kind.dtype}")
        if 0 in kind.shape:
            raise UnsupportedError(f"{title}: an empty tensor")
    space = "DHW"[5 - len(node.type.shape) :]
    wanted = ("IO" if node.op in DECONVOLUTIONS else "OI") + space
    if (attributes["data_layout"], attributes["kernel_layout"]) != ("NC" + space, wanted):
        raise UnsupportedError(f"{title}: images or filters in another layout than ONNX's")


def tensor(location: dict[str, Any], kind: TensorType, rank: int) -> dict[str, Any]:
    """Return a dense tensor of so many axes for the runtime; strides count elements."""
    dims = (1,) * (rank - len(kind.shape)) + tuple(kind.shape)
    return {**location, "dims": list(dims), "strides": list(row_major(dims)), "dtype": kind.dtype}


def steps(places: Places, product: Product, precision: str) -> list[dict[str, Any]]:
    """Return the one step of a convolution.

    Raises:
        UnsupportedError: Its activation is none of cuDNN's, for the reason in the message.
    """
    graph, node = places.graph, product.anchor
    rank = len(node.type.shape) - 2
    transposed = node.op in DECONVOLUTIONS
    x, w = (graph.values[product.bindings[side]].type for side in ("left", "right"))
    strides, dilation = (per_axis(node.attributes[k], rank) for k in ("strides", "dilation"))
    begin, end = pads(node.attributes["padding"], rank)
    if transposed:
        end = deconvolution_end(node, x.shape, w.shape[2:], strides, dilation, begin)

    def operand(index: int) -> dict[str, Any]:
        return tensor(places.read(index), graph.values[index].type, rank + 2)

    posts: list[dict[str, Any]] = [
        {"mode": "add", "other": operand(index)}
        for index in (product.bias, product.residual)
        if index is not None
    ]
    if product.epilogue != "none":
        posts.append(activation(graph.nodes[product.result], product.epilogue))
    # Only what is float32 can lose by being rounded inside; engines that read half precision or
    # less use tensor cores in any case.
    exact = precision == "float32" == x.dtype
    return [
        {
            "op": "deconv" if transposed else "conv",
            "name": node.name or f"{node.op} {node.index}",
            "math": "float32" if exact else "any",
            "x": operand(product.bindings["left"]),
            "w": operand(product.bindings["right"]),
            "y": tensor(places.write(product.result), node.type, rank + 2),
            "pre": list(begin),
            "post": list(end),
            "stride": list(strides),
            "dilation": list(dilation),
            "posts": posts,
        }
    ]


def deconvolution_end(
    node: Node, shape: Ints, kernel: Ints, strides: Ints, dilation: Ints, begin: Ints
) -> Ints:
    """Return the padding behind each axis with which the result has its size.

    Output padding reduces it.
    """
    sizes = zip(shape[2:], node.type.shape[2:], kernel, strides, dilation, begin, strict=True)
    return tuple(
        (given - 1) * stride + (taps - 1) * apart + 1 - before - made
        for given, made, taps, stride, apart, before in sizes
    )


def activation(node: Node, mode: str) -> dict[str, Any]:
    """Return cuDNN's pointwise operation for an activation.

    Raises:
        UnsupportedError: It is clipped on one side only.
    """
    if mode == "clip":
        low, high = float(node.attributes["min"]), float(node.attributes["max"])
        if not np.isfinite([low, high]).all():
            raise UnsupportedError("Clip: cuDNN needs both limits")
        return {"mode": mode, "low": low, "high": high}
    if mode == "leaky":
        return {"mode": "relu", "slope": float(node.attributes["alpha"])}
    return {"mode": mode}


DIALECT = Dialect(
    name="cuDNN",
    takes="convolutions of images and volumes by constant filters, and attention",
    anchor=op(CONVOLUTIONS, anything("left"), constant("right"), name="anchor"),
    channel_axis=1,
    epilogues={mode: partial(op, relax) for mode, relax in ACTIVATIONS.items()},
    check=check,
    steps=steps,
    further=(
        (attention.AttentionPattern(name="attention"), attention.steps),
        (attention.GATED, attention.gated_steps),
    ),
)
"""Convolutions, plain and transposed, with bias, residual sum and activation; attention."""


FRONTEND = ("nvidia-cudnn-frontend",)
"""Packages that hold the headers of cuDNN's C++ front end."""


class CudnnToolchain(CudaToolchain):
    """cuDNN 9; of the engines that its heuristics offer, the fastest as measured."""

    about = ToolchainAbout(
        name="cudnn",
        title="cuDNN",
        licence="LicenseRef-NVIDIA-cuDNN",
        targets=("cuda",),
        install="pip install 'collage-explorer[cuda]'",
        colour="#d55e00",
        letters="CD",
        pattern="cross",
    )
    depends = ("collage_engine.partition.patterns",)
    dialect = DIALECT
    pattern = DIALECT.pattern
    main = Path(__file__).parent / "src" / "cudnn_module.cc"
    wheels = ("nvidia-cudnn-cu13",)
    library_name = "libcudnn.so.9"
    version_header, version_macros = "cudnn_version.h", ("CUDNN_", "PATCHLEVEL")
    choice = "engine"

    def headers(self) -> list[Path]:
        """Return the library's header, and that of its C++ front end."""
        return [*super().headers(), find_file(FRONTEND, "cudnn_frontend_version.h")]

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        source = super().source()
        beside = {name: file for name, file in source.beside}
        beside.update((file.name, file) for file in (*self.parts(), *nvrtc()))
        return replace(source, beside=tuple(beside.items()))

    def parts(self) -> list[Path]:
        """Return libcudnn.so.9 and the libraries of its engines.

        libcudnn.so.9 opens them by name, and ends the process where they do not lie beside it.
        """
        return sorted(self.library().parent.glob("libcudnn*.so.9"))

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that its runtime links, and the runtime itself."""
        libraries = [self.carried(path) for path in self.parts()]
        compiler = [self.carried(path, licence=LICENCE) for path in nvrtc()]
        return (*libraries, *compiler, cudart_library(self.name), self.own_library())
