"""Says what CUTLASS takes, convolutions with what follows them, and makes programs of it.

The steps of a program are convolutions and transposed images.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import node_set
from collage_engine.partition.patterns import Pattern, anything, constant, op
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.format import NHWC, TO_STORED, differs
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.cutlass.families import ALIGNMENTS, Family, alignment
from collage_engine.toolchains.runtime import chains
from collage_engine.toolchains.runtime.per_axis import pads, per_axis
from collage_engine.toolchains.runtime.places import Constants, Places, blank
from collage_engine.toolchains.runtime.products import Dialect, Product, products

TYPES = ("float16", "bfloat16")
"""Element types that the kernels read."""


def layout(node: Node) -> str:
    """Returns the layout of a convolution's images."""
    return str(node.attributes.get("data_layout", "NCHW"))


def _check(graph: DataflowGraph, node: Node) -> None:
    """Checks the types and attributes of a convolution.

    Raises:
        UnsupportedError: The kernels cannot compute it, for the reason in the message.
    """
    title, attributes = onnx_type(node.op), node.attributes
    kinds = {graph.nodes[i].type.dtype for i in node.inputs} | {node.type.dtype}
    if len(kinds) != 1 or node.type.dtype not in TYPES:
        raise UnsupportedError(
            f"{title}: CUTLASS's kernels here take no {' by '.join(sorted(kinds))}"
        )
    if 0 in node.type.shape:
        raise UnsupportedError(f"{title}: an empty result")
    if int(attributes.get("groups", 1)) != 1:
        raise UnsupportedError(f"{title}: CUTLASS's kernels here have no groups")
    if layout(node) not in ("NCHW", "NHWC"):
        raise UnsupportedError(f"{title}: CUTLASS has no layout {layout(node)}")
    if str(attributes.get("out_layout") or layout(node)) != layout(node):
        raise UnsupportedError(f"{title}: a result in another layout than the image")
    if sorted(str(attributes["kernel_layout"])) != sorted("OIHW"):
        raise UnsupportedError(f"{title}: no kernel layout {attributes['kernel_layout']}")
    if graph.nodes[node.inputs[1]].form != "constant":
        raise UnsupportedError(f"{title}: weights that are computed")


DIALECT = Dialect(
    name="CUTLASS",
    check=_check,
    activations={"nn.relu": "relu", "nn.silu": "silu"},
    chains=(("silu", chains.silu),),
    channel_axes={"nn.conv2d": lambda node: layout(node).index("C")},
)
"""The checks and tables by which convolutions for CUTLASS are recognised."""


LARGEST = 1 << 31
"""Bytes of a tensor have to stay below it: the kernels count in 32 bits."""

Ints = tuple[int, ...]
Place = dict[str, Any]


class Generator:
    """The writer of the steps of one function."""

    def __init__(self, places: Places, outputs: Ints) -> None:
        self.places = places
        self.graph = places.graph
        self.outputs = outputs
        self.steps: list[dict[str, Any]] = []
        self.families: set[Family] = set()
        self.images: dict[int, Place] = {}
        """Values that lie N, H, W, C in temporaries, whatever is at the border."""

    def emit(self, product: Product) -> None:
        """Appends the steps of a convolution with what follows it.

        Raises:
            UnsupportedError: The kernels cannot compute it, for the reason in the message.
        """
        self.places.check_scalars(product.scalars, product.epilogue)
        node = self.graph.nodes[product.anchor]
        filters = filters_of(node, self.places.constants(product.right))
        sizes = sizes_of(node, self.graph.nodes[product.left].type.shape, filters.shape[1:3])
        largest = max(self.graph.nodes[product.left].type.bytes, node.type.bytes, filters.nbytes)
        if largest >= LARGEST:
            raise UnsupportedError(f"{onnx_type(node.op)}: tensors of more than 31 bits")
        align = row_alignment(node, sizes["channels"], sizes["filters"])
        family = Family(node.type.dtype, product.epilogue, align)
        self.families.add(family)
        last = layout(node) == "NHWC"
        read = self.places.read if last else self.image
        step = {
            "op": "conv",
            "name": node.name or f"{node.op} {node.index}",
            "family": family.name,
            "dtype": node.type.dtype,
            "epilogue": family.activation,
            **sizes,
            "a": read(product.left),
            "b": self.places.constant(filters),
        }
        if product.bias is not None:
            step["bias"] = self.places.read(product.bias)
        if product.residual is not None:
            step["c"] = read(product.residual)
        self.steps.append(step)  # behind the transpositions of what it reads
        if last:
            step["d"] = self.places.write(product.result)
        else:
            self._write_image(product.result)

    def _is_stored(self, index: int) -> bool:
        """Returns whether a value lies equally with its channels first and innermost."""
        return not differs(self.graph.nodes[index].type)

    def image(self, index: int) -> Place:
        """Returns the place of a value of axes N, C, H, W, stored as N, H, W, C.

        Where it is stored otherwise, a step that transposes it is appended.
        """
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
        """Makes the last step write its result where its value is wanted."""
        node = self.graph.nodes[index]
        if index in self.outputs and self._is_stored(index):
            self.steps[-1]["d"] = self.places.write(index)
            return
        self.images[index] = self.steps[-1]["d"] = self.places.temporary(node.type.bytes)
        if index in self.outputs:
            n, c, h, w = node.type.shape
            self._transpose(node, self.images[index], self.places.write(index), n, h * w, c)

    def _transpose(
        self, node: Node, source: Place, target: Place, batch: int, rows: int, columns: int
    ) -> None:
        what = node.name or node.op or "an input"
        self.steps.append(
            {
                "op": "transpose",
                "name": f"{what}, other order of axes",
                "dtype": node.type.dtype,
                "batch": batch,
                "rows": rows,
                "columns": columns,
                "a": source,
                "d": target,
            }
        )


def sizes_of(node: Node, shape: Ints, kernel: Ints) -> dict[str, int]:
    """Returns the sizes of a convolution as JSON values for the runtime.

    Args:
        node: The convolution.
        shape: The shape of its images, in its own layout.
        kernel: The kernel's rows and columns.
    """
    last = layout(node) == "NHWC"
    n, h, w, c = shape if last else _stored(shape)
    result = node.type.shape if last else _stored(node.type.shape)
    pad, _ = pads(node.attributes.get("padding", 0), 2)
    stride = per_axis(node.attributes.get("strides", 1), 2)
    dilation = per_axis(node.attributes.get("dilation", 1), 2)
    return {
        "images": n,
        "height": h,
        "width": w,
        "channels": c,
        "filters": result[3],
        "kernel_h": kernel[0],
        "kernel_w": kernel[1],
        "out_h": result[1],
        "out_w": result[2],
        "pad_h": pad[0],
        "pad_w": pad[1],
        "stride_h": stride[0],
        "stride_w": stride[1],
        "dilation_h": dilation[0],
        "dilation_w": dilation[1],
    }


def filters_of(node: Node, array: np.ndarray) -> np.ndarray:
    """Returns filters in the order in which kernels read them: O, H, W, I."""
    order = str(node.attributes["kernel_layout"])
    return array.transpose([order.index(axis) for axis in "OHWI"])


def row_alignment(node: Node, *rows: int) -> int:
    """Returns the widest alignment with which rows of so many elements can be read.

    Raises:
        UnsupportedError: There is none.
    """
    align = alignment(*rows)
    if align is None:
        raise UnsupportedError(
            f"{onnx_type(node.op)}: rows of {' and '.join(map(str, rows))} elements, which are no "
            f"multiples of {ALIGNMENTS[-1]}"
        )
    return align


def _stored(shape: Ints) -> Ints:
    return tuple(shape[axis] for axis in TO_STORED[NHWC])


def plan_of(
    graph: DataflowGraph,
    nodes: NodeSet,
    inputs: tuple[NodeIndex, ...],
    outputs: tuple[NodeIndex, ...],
    constants: Constants,
    *,
    dry: bool = False,
) -> tuple[dict[str, Any], bytes, tuple[Family, ...]]:
    """Returns the program, the weights, and the families whose libraries it needs.

    Steps name their family; the libraries are added later.

    Args:
        graph: The dataflow graph.
        nodes: The function's nodes.
        inputs: The nodes that it takes, in the order of its arguments.
        outputs: The nodes that it gives, in the order of its arguments.
        constants: Gives the values of constant nodes.
        dry: Whether the weights are left out.

    Raises:
        UnsupportedError: CUTLASS cannot compute it, for the reason in the message.
    """
    places = Places(graph, inputs, outputs, constants, dry)
    generator = Generator(places, outputs)
    leaving = node_set(outputs)
    left = nodes & ~node_set(inputs)
    for product in sorted(products(graph, left, leaving, DIALECT), key=lambda p: p.result):
        generator.emit(product)  # what it reads was made before
    plan = {"steps": generator.steps, "scratch_bytes": places.scratch}
    return plan, bytes(places.weights), tuple(sorted(generator.families))


def dry_plan(graph: DataflowGraph, nodes: NodeSet) -> tuple[Family, ...]:
    """Returns the families that some operators need, from the shapes of their weights only.

    Raises:
        UnsupportedError: CUTLASS cannot compute them, for the reason in the message.
    """
    closed = graph.close(nodes)
    inputs, outputs = graph.boundary(closed)
    return plan_of(graph, closed, inputs, outputs, blank(graph), dry=True)[2]


def patterns() -> list[tuple[str, Pattern]]:
    """Returns the pattern of a convolution with optional bias, residual sum and activation."""
    anchor = op("nn.conv2d", anything("x"), constant("weights"), commutative=False)
    biased = anchor.optional(lambda x: op("add", x, anything("bias")))
    summed = biased.optional(lambda x: op("add", x, anything("residual")))
    active = summed.optional(
        lambda x: op(tuple(DIALECT.activations), x, commutative=False) | chains.silu(x)
    )
    return [("cutlass.conv2d", active)]
