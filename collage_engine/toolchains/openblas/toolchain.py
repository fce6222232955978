"""Runs products by OpenBLAS from the wheel scipy-openblas32, whose symbols begin with scipy_.

A product is a MatMul, or a convolution that is a MatMul: one with a 1×1 kernel that reads every
pixel once multiplies the filters by the image as it lies in memory. A constant bias is what the
product is added to. What else follows, and transposes before it, are left to other toolchains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import anything, constant, op
from collage_engine.records.graph import (
    Node,
    OperatorSet,
    TensorType,
    ValueIndex,
    members,
)
from collage_engine.records.operators import onnx_type
from collage_engine.records.toolchain import ToolchainAbout
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.builder import RuntimeSource, find_in_wheel, wheel_version
from collage_engine.toolchains.runtime.products import pads, per_axis
from collage_engine.toolchains.runtime.toolchain import PatternToolchain

PRODUCTS = ("matmul", "nn.conv1d", "nn.conv2d")
"""Relax operators that are products; convolutions are where their kernel has one tap."""


@dataclass(frozen=True)
class Product:
    """A batch of products ``c (rows×columns) = a (rows×depth) · b (depth×columns)``, row-major."""

    rows: int
    columns: int
    depth: int
    left: int
    """Which of the operator's two inputs is ``a``; the other one is ``b``."""
    a_offsets: tuple[int, ...]
    """Where the matrices of ``a`` begin, in elements, for each product of the batch."""
    b_offsets: tuple[int, ...]


def biased_product(
    graph: DataflowGraph, nodes: OperatorSet
) -> tuple[Node, Product, ValueIndex | None]:
    """Return the product that some operators are: its operator, its sizes, and its bias if any.

    Raises:
        UnsupportedError: They are something else; the text says what.
    """
    node, *others = (graph.nodes[index] for index in members(nodes))
    product = product_of(graph, node)
    if not others:
        return node, product, None
    channels = len(node.type.shape) - 1 if node.op == "matmul" else 1
    along = tuple(n if axis == channels else 1 for axis, n in enumerate(node.type.shape))
    added = others[0]
    if len(others) == 1 and added.op == "add" and graph.exits(nodes) == (added.index,):
        for bias in set(added.inputs) - {node.index}:
            shape = graph.values[bias].type.shape
            full = (1,) * (len(along) - len(shape)) + shape
            columns_last = len(graph.values[node.inputs[1]].type.shape) > 1
            if graph.values[bias].constant and full == along and columns_last:
                return node, product, bias
    raise UnsupportedError("a BLAS computes one product a call, and a constant bias along it")


def product_of(graph: DataflowGraph, node: Node) -> Product:
    """Return the product that a call is.

    Raises:
        UnsupportedError: It is none; the text says why.
    """
    if node.op not in PRODUCTS:
        raise UnsupportedError(f"a BLAS computes products only, no {onnx_type(node.op)}")
    operands = [graph.values[index].type for index in node.inputs]
    for kind in (node.type, *operands):
        if kind.dtype != "float32":
            raise UnsupportedError(
                f"{onnx_type(node.op)}: a BLAS computes float32, not {kind.dtype}"
            )
        if 0 in kind.shape:
            raise UnsupportedError(f"{onnx_type(node.op)}: a BLAS multiplies no empty tensors")
    return (_matmul if node.op == "matmul" else _convolution)(node, *operands)


def _matmul(node: Node, left: TensorType, right: TensorType) -> Product:
    """Follows NumPy's rules; rows of a whole batch are multiplied at once by a single matrix."""
    a, b = left.shape, right.shape
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    rows, depth, columns = a[-2], a[-1], b[-1]
    if math.prod(b[:-2]) == 1:
        return Product(math.prod(a[:-1]), columns, depth, 0, (0,), (0,))
    batch = np.broadcast_shapes(a[:-2], b[:-2])

    def offsets(own: tuple[int, ...], elements: int) -> tuple[int, ...]:
        begins = np.arange(math.prod(own)).reshape(own) * elements
        return tuple(np.broadcast_to(begins, batch).ravel().tolist())

    return Product(
        rows, columns, depth, 0, offsets(a[:-2], rows * depth), offsets(b[:-2], depth * columns)
    )


def _convolution(node: Node, data: TensorType, weights: TensorType) -> Product:
    """Multiplies, for each image and group, the filters by the channels of all pixels."""
    title, attributes = onnx_type(node.op), node.attributes
    if not str(attributes["data_layout"]).startswith("NC"):
        raise UnsupportedError(f"{title}: a BLAS multiplies by channels first only")
    taps = weights.shape[2:]
    rank = len(taps)
    steps = (*taps, *per_axis(attributes["strides"], rank))
    if {*steps} != {1} or any(sum(pads(attributes["padding"], rank), ())):
        raise UnsupportedError(f"{title}: only a 1×1 kernel that reads every pixel is a product")
    groups = int(attributes.get("groups", 1))
    images, pixels = data.shape[0], math.prod(data.shape[2:])
    filters, channels = weights.shape[0] // groups, weights.shape[1]
    if groups > 1 and channels == 1:
        raise UnsupportedError(f"{title}: a depthwise convolution is no matrix product")
    batch = range(images * groups)
    return Product(
        rows=filters,
        columns=pixels,
        depth=channels,
        left=1,
        a_offsets=tuple(job % groups * filters * channels for job in batch),
        b_offsets=tuple(job * channels * pixels for job in batch),
    )


PACKAGE = "scipy-openblas32"


class OpenBlasToolchain(PatternToolchain):
    """One product a call, with its bias.

    OpenBLAS's own threads stay off: the runtime shares a product among threads itself.
    """

    about = ToolchainAbout(
        name="openblas",
        title="OpenBLAS",
        licence="BSD-3-Clause",
        environment={"OPENBLAS_NUM_THREADS": "1"},
        own_threads=False,
        install=f"pip install {PACKAGE}",
        colour="#f0e442",
        letters="OB",
        pattern="upright",
    )
    depends = ("collage_engine.partition.patterns",)
    pattern = op(PRODUCTS, anything(), anything(), commutative=False).optional(
        lambda x: op("add", x, constant("bias"))
    )
    # What the wheel brings along, as its LICENSE.txt says it.
    licences = MappingProxyType(
        {
            "libgfortran": "GPL-3.0-or-later WITH GCC-exception-3.1",
            "libquadmath": "LGPL-2.1-or-later",
        }
    )

    def _libraries(self) -> tuple[Path, ...]:
        """Return OpenBLAS, then what its wheel brings along for it (the Fortran runtime)."""
        library = find_in_wheel(PACKAGE, "libscipy_openblas.so")
        others = [p for p in library.parent.iterdir() if ".so" in p.name and p != library]
        return (library, *sorted(others))

    def version(self) -> str:
        """Return the version of the library that is installed here."""
        return wheel_version(PACKAGE)

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        libraries = self._libraries()
        return RuntimeSource(
            toolchain=self.name,
            main=Path(__file__).parent / "src" / "openblas_module.cc",
            library_version=self.version(),
            includes=(find_in_wheel(PACKAGE, "cblas.h", "include").parent,),
            links=libraries[:1],
            beside=tuple((file.name, file) for file in libraries),
        )

    def check_calls(self, graph: DataflowGraph, nodes: OperatorSet) -> None:
        """Implement ``PatternToolchain.check_calls``: each product is a call, and a candidate."""
        biased_product(graph, nodes)

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """Return the plan and the weights of a function, for its C++ runtime."""
        graph = function.graph
        node, product, bias = biased_product(graph, function.nodes)
        weights = b""
        places = []
        for index in (*node.inputs, *([] if bias is None else [bias])):
            if graph.values[index].constant:
                places.append({"input": -1, "offset": len(weights) // 4})
                weights += np.ascontiguousarray(function.constant(index)).tobytes()
            else:
                places.append({"input": function.inputs.index(index), "offset": 0})
        plan = {
            "m": product.rows,
            "n": product.columns,
            "k": product.depth,
            "a": places[product.left] | {"batch": list(product.a_offsets)},
            "b": places[1 - product.left] | {"batch": list(product.b_offsets)},
        }
        if bias is not None:
            # A convolution's lies along the rows, which are its filters.
            by_rows = node.op != "matmul"
            begins = [begin // product.depth if by_rows else 0 for begin in product.a_offsets]
            plan |= {"bias": places[2] | {"batch": begins}, "bias_by_rows": by_rows}
        return plan, weights
