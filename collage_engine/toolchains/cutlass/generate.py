"""From a function of the dataflow graph to a plan of products and convolutions for CUTLASS."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import IndexSet
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.format import NHWC, TO_STORED, differs
from collage_engine.records.graph import Node
from collage_engine.toolchains.cutlass.families import Family, alignment
from collage_engine.toolchains.native import chains
from collage_engine.toolchains.native.places import Constants, Places
from collage_engine.toolchains.native.products import (
    Dialect,
    Product,
    layout_of,
    layout_of_product,
    products,
)

TYPES = ("float32", "float16", "bfloat16")
LARGEST = 1 << 31
"""Sizes and, for convolutions, bytes of a tensor stay below: the kernels count in 32 bits."""

Ints = tuple[int, ...]


def _check(graph: DataflowGraph, node: Node) -> None:
    """``UnsupportedError`` with the reason against an anchor, by its types and attributes."""
    kinds = {graph.nodes[i].type.dtype for i in node.inputs} | {node.type.dtype}
    if len(kinds) != 1 or node.type.dtype not in TYPES:
        raise UnsupportedError(f"{node.op}: CUTLASS's kernels take no {' by '.join(sorted(kinds))}")
    if 0 in node.type.shape:
        raise UnsupportedError(f"{node.op}: an empty result")
    if node.op == "matmul":
        left, right = (graph.nodes[i].type.shape for i in node.inputs)
        layout_of(left, right, node.type.shape)
        return
    attributes = node.attributes
    if _layout(node) not in ("NCHW", "NHWC"):
        raise UnsupportedError(f"{node.op}: CUTLASS has no layout {_layout(node)}")
    if str(attributes.get("out_layout") or _layout(node)) != _layout(node):
        raise UnsupportedError(f"{node.op}: a result in another layout than the image")
    if int(attributes.get("groups", 1)) != 1:
        raise UnsupportedError(f"{node.op}: CUTLASS's kernels here have no groups")
    if graph.nodes[node.inputs[1]].form != "constant":
        raise UnsupportedError(f"{node.op}: weights that are computed")
    if sorted(str(attributes["kernel_layout"])) != sorted("OIHW"):
        raise UnsupportedError(f"{node.op}: no kernel layout {attributes['kernel_layout']}")


def _layout(node: Node) -> str:
    return str(node.attributes.get("data_layout", "NCHW"))


DIALECT = Dialect(
    name="CUTLASS",
    check=_check,
    activations={
        "nn.relu": "relu", "nn.gelu": "gelu", "nn.gelu_tanh": "gelu_tanh", "nn.silu": "silu",
    },
    chains=(("gelu_tanh", chains.gelu_tanh), ("gelu", chains.gelu_erf), ("silu", chains.silu)),
    channel_axes={
        "matmul": lambda node: len(node.type.shape) - 1,
        "nn.conv2d": lambda node: _layout(node).index("C"),
    },
)  # fmt: skip


class Generator:
    """Writes the steps of one function."""

    def __init__(self, places: Places, formats: dict[int, str], outputs: Ints, math: str) -> None:
        self.places = places
        self.graph = places.graph
        self.formats = formats
        self.outputs = outputs
        self.tf32 = math == "tf32"
        self.steps: list[dict[str, Any]] = []
        self.families: set[Family] = set()
        self.images: dict[int, dict[str, Any]] = {}
        """Values that lie N, H, W, C in temporaries, whatever is at the border."""

    def emit(self, product: Product) -> None:
        self.places.check_scalars(product.scalars, product.epilogue)
        node = self.graph.nodes[product.anchor]
        if node.op == "matmul":
            self._matmul(product, node)
        else:
            self._convolution(product, node)

    # ---- products --------------------------------------------------------------------------

    def _matmul(self, product: Product, node: Node) -> None:
        if product.transpose_left:
            raise UnsupportedError("matmul: CUTLASS's kernels here read the left matrix by rows")
        layout = layout_of_product(self.graph, product)
        b, order = self._right(product, layout.batch)
        self._gemm(
            product, node, order, {"a": self._plain(product.left), "b": b},
            {"m": layout.m, "n": layout.n, "k": layout.k, "batch": layout.batch,
             **{f"stride_{name}": stride for name, stride in layout.strides.items()}},
        )  # fmt: skip
        self._ends(product, self._plain)
        self.steps[-1]["d"] = self._plain(product.result, write=True)

    def _right(self, product: Product, batch: int) -> tuple[dict[str, Any], str]:
        """The right operand, and which of its axes is innermost."""
        if product.transpose_right:
            return self._plain(product.right), "columns"
        if self.tf32 and batch == 1 and self.graph.nodes[product.right].form == "constant":
            # Hopper's tensor cores read float32 along k only; a constant can lie either way.
            array = self.places.constants(product.right)
            matrix = array.reshape(array.shape[-2:]) if array.ndim > 1 else array.reshape(-1, 1)
            return self.places.constant(matrix.T), "columns"
        return self._plain(product.right), "rows"

    def _plain(self, index: int, write: bool = False) -> dict[str, Any]:
        if self.formats.get(index) == NHWC or index in self.images:
            raise UnsupportedError("matmul: an operand whose channels lie innermost")
        return self.places.write(index) if write else self.places.read(index)

    def _gemm(
        self, product: Product, node: Node, order: str, operands: dict[str, Any],
        sizes: dict[str, int],
    ) -> None:  # fmt: skip
        rows = (sizes["k"], sizes["n"])
        if max(*sizes.values(), *rows) >= LARGEST:
            raise UnsupportedError(f"{node.op}: sizes of more than 31 bits")
        family = self._family("gemm", node, product, order, rows)
        self._step("gemm", node, family, {**sizes, **operands})

    def _family(
        self, op: str, node: Node, product: Product, order: str, rows: tuple[int, ...]
    ) -> Family:
        math = "tf32" if self.tf32 and node.type.dtype == "float32" else node.type.dtype
        align = alignment(math, *rows)
        if align is None:
            raise UnsupportedError(
                f"{node.op}: rows of {' and '.join(map(str, rows))} elements of {node.type.dtype}, "
                "of which an odd one cannot be read in words"
            )
        return Family(op, math, order, product.epilogue, align)

    def _step(self, op: str, node: Node, family: Family, fields: dict[str, Any]) -> None:
        self.families.add(family)
        self.steps.append(
            {"op": op, "name": node.name or f"{node.op} {node.index}", "family": family.name,
             "dtype": node.type.dtype, "epilogue": family.activation, **fields}
        )  # fmt: skip

    def _ends(self, product: Product, read: Any) -> None:
        if product.bias is not None:
            self.steps[-1]["bias"] = self.places.read(product.bias)
        if product.residual is not None:
            at = len(self.steps) - 1
            residual = read(product.residual)  # may put a transposition behind this step
            if len(self.steps) > at + 1:
                self.steps.append(self.steps.pop(at))
            self.steps[-1]["c"] = residual

    # ---- convolutions ----------------------------------------------------------------------

    def _convolution(self, product: Product, node: Node) -> None:
        attributes, last = node.attributes, _layout(node) == "NHWC"
        read = self.places.read if last else self._image
        shape = self.graph.nodes[product.left].type.shape
        n, h, w, c = shape if last else _stored(shape)
        _, out_h, out_w, k = node.type.shape if last else _stored(node.type.shape)
        layout = str(attributes["kernel_layout"])
        filters = self.places.constants(product.right)
        filters = filters.transpose([layout.index(axis) for axis in "OHWI"])
        kernel_h, kernel_w = filters.shape[1:3]
        stride, dilation = (_pair(attributes.get(key, 1)) for key in ("strides", "dilation"))
        padding = _pads(attributes.get("padding", 0))
        size = node.type.bytes // int(np.prod(node.type.shape))
        if max(n * h * w * c, n * out_h * out_w * k, filters.size) * size >= LARGEST:
            raise UnsupportedError(f"{node.op}: tensors of more than 31 bits")
        a = read(product.left)
        operands = {"a": a, "b": self.places.constant(filters)}
        pointwise = (kernel_h, kernel_w) == (1, 1) == stride and not any(padding)
        if pointwise:
            self._gemm(product, node, "columns", operands,
                       {"m": n * h * w, "n": k, "k": c, "batch": 1})  # fmt: skip
        else:
            family = self._family("conv", node, product, "columns", (c, k))
            self._step("conv", node, family, {
                "images": n, "height": h, "width": w, "channels": c, "filters": k,
                "kernel_h": kernel_h, "kernel_w": kernel_w, "out_h": out_h, "out_w": out_w,
                "pad_h": padding[0], "pad_w": padding[1],
                "stride_h": stride[0], "stride_w": stride[1],
                "dilation_h": dilation[0], "dilation_w": dilation[1], **operands,
            })  # fmt: skip
        self._ends(product, read)
        if last:
            self.steps[-1]["d"] = self.places.write(product.result)
        else:
            self._write_image(product.result)

    def _is_stored(self, index: int) -> bool:
        """Whether what crosses the border for a value has its channels innermost."""
        return self.formats.get(index) == NHWC or not differs(self.graph.nodes[index].type)

    def _image(self, index: int) -> dict[str, Any]:
        """A value of axes N, C, H, W, stored N, H, W, C; transposed now if it is not."""
        if index in self.images:
            return self.images[index]
        node = self.graph.nodes[index]
        if node.form == "constant":
            array = self.places.constants(index)
            self.images[index] = self.places.constant(array.transpose(TO_STORED[NHWC]))
        elif self._is_stored(index):
            return self.places.read(index)
        else:
            given = self.places.read(index)
            self.images[index] = self.places.temporary(node.type.bytes)
            n, c, h, w = node.type.shape
            self._transpose(node, given, self.images[index], n, c, h * w)
        return self.images[index]

    def _write_image(self, index: int) -> None:
        """Put the last step's result where its value is wanted."""
        node = self.graph.nodes[index]
        if index in self.outputs and self._is_stored(index):
            self.steps[-1]["d"] = self.places.write(index)
            return
        self.images[index] = self.steps[-1]["d"] = self.places.temporary(node.type.bytes)
        if index in self.outputs:
            n, c, h, w = node.type.shape
            self._transpose(node, self.images[index], self.places.write(index), n, h * w, c)

    def _transpose(
        self, node: Node, source: dict[str, Any], target: dict[str, Any], batch: int, rows: int,
        columns: int,
    ) -> None:  # fmt: skip
        what = node.name or node.op or "an input"
        self.steps.append(
            {"op": "transpose", "name": f"{what}, other order of axes", "dtype": node.type.dtype,
             "batch": batch, "rows": rows, "columns": columns, "a": source, "d": target}
        )  # fmt: skip


def _stored(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in TO_STORED[NHWC])


def _pair(value: Any) -> tuple[int, int]:
    first, second = map(int, value) if isinstance(value, (list, tuple)) else (int(value),) * 2
    return first, second


def _pads(value: Any) -> Ints:
    """Top, left, bottom, right."""
    if not isinstance(value, (list, tuple)):
        return (int(value),) * 4
    pads = tuple(map(int, value))
    return pads * 4 if len(pads) == 1 else pads * 2 if len(pads) == 2 else pads


def plan_of(
    graph: DataflowGraph,
    nodes: IndexSet,
    inputs: Ints,
    outputs: Ints,
    constants: Constants,
    precision: str = "float32",
    formats: dict[int, str] | None = None,
    *,
    dry: bool = False,
) -> tuple[dict[str, Any], bytes, tuple[Family, ...]]:
    """The plan, the weights, and the families whose libraries it needs.

    ``formats``: of inputs and outputs that are not plain. ``UnsupportedError`` with the reason
    when CUTLASS cannot take it. Steps name their family; the libraries are yet to be added.
    ``dry``: the weights are left out.
    """
    places = Places(graph, inputs, outputs, constants, dry)
    generator = Generator(places, formats or {}, outputs, precision)
    leaving = sum(1 << i for i in outputs)
    for product in products(graph, nodes & ~sum(1 << i for i in inputs), leaving, DIALECT):
        generator.emit(product)
    plan = {"steps": generator.steps, "scratch_bytes": places.scratch}
    return plan, bytes(places.weights), tuple(sorted(generator.families))


def dry_plan(
    graph: DataflowGraph, nodes: IndexSet, precision: str = "float32"
) -> tuple[Family, ...]:
    """The families that these operators need; ``UnsupportedError`` with the reason when CUTLASS
    cannot take them. Weights are not looked at, only their shapes."""
    closed = graph.close(nodes)
    inputs, outputs = graph.boundary(closed)
    return plan_of(graph, closed, inputs, outputs, blank(graph), precision, dry=True)[2]


def blank(graph: DataflowGraph) -> Constants:
    """Constants of the right types that hold nothing."""

    def make(index: int) -> np.ndarray:
        kind = graph.nodes[index].type
        return np.broadcast_to(np.zeros((), _numpy(kind.dtype)), tuple(kind.shape))

    return make


def _numpy(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
