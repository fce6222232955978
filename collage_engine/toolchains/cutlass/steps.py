"""Writes the steps of a program: products, convolutions, and transposed images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage_engine.records.errors import UnsupportedError
from collage_engine.records.format import NHWC, TO_STORED, differs
from collage_engine.records.graph import Node
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.cutlass.dialect import layout
from collage_engine.toolchains.cutlass.families import ALIGNMENTS, Family, alignment
from collage_engine.toolchains.runtime.per_axis import pads, per_axis
from collage_engine.toolchains.runtime.places import Places
from collage_engine.toolchains.runtime.products import Product, layout_of_product

LARGEST = 1 << 31
"""Sizes and, for convolutions, bytes of a tensor have to stay below it: the kernels count in 32
bits."""

Ints = tuple[int, ...]
Place = dict[str, Any]


@dataclass(frozen=True)
class Convolved:
    """The sizes of a convolution of images that are stored as N, H, W, C."""

    image: Ints
    result: Ints
    kernel: Ints
    stride: Ints
    dilation: Ints
    padding: Ints

    @property
    def pointwise(self) -> bool:
        """Tell whether it is a product of all pixels with one matrix."""
        return self.kernel == (1, 1) == self.stride and not any(self.padding)

    @property
    def channels(self) -> int:
        """Return the number of input channels."""
        return self.image[3]

    @property
    def filters(self) -> int:
        """Return the number of output channels."""
        return self.result[3]

    def product(self) -> dict[str, int]:
        """Returns the sizes of the product that a pointwise convolution is."""
        n, h, w, c = self.image
        return {"m": n * h * w, "n": self.filters, "k": c, "batch": 1}

    def fields(self) -> dict[str, int]:
        """Returns the sizes as JSON values for the runtime."""
        n, h, w, c = self.image
        return {
            "images": n,
            "height": h,
            "width": w,
            "channels": c,
            "filters": self.filters,
            "kernel_h": self.kernel[0],
            "kernel_w": self.kernel[1],
            "out_h": self.result[1],
            "out_w": self.result[2],
            "pad_h": self.padding[0],
            "pad_w": self.padding[1],
            "stride_h": self.stride[0],
            "stride_w": self.stride[1],
            "dilation_h": self.dilation[0],
            "dilation_w": self.dilation[1],
        }


def convolved(node: Node, shape: Ints, kernel: Ints) -> Convolved:
    """Returns the sizes of a convolution of images of this shape, in the operator's layout."""
    last = layout(node) == "NHWC"
    attributes = node.attributes
    begin, end = pads(attributes.get("padding", 0), 2)
    return Convolved(
        shape if last else _stored(shape),
        node.type.shape if last else _stored(node.type.shape),
        kernel,
        per_axis(attributes.get("strides", 1), 2),
        per_axis(attributes.get("dilation", 1), 2),
        (*begin, *end),
    )


def filters_of(node: Node, array: np.ndarray) -> np.ndarray:
    """Returns filters in the order in which kernels read them: O, H, W, I."""
    order = str(node.attributes["kernel_layout"])
    return array.transpose([order.index(axis) for axis in "OHWI"])


class Generator:
    """The writer of the steps of one function."""

    def __init__(self, places: Places, formats: dict[int, str], outputs: Ints, math: str) -> None:
        self.places = places
        self.graph = places.graph
        self.formats = formats
        self.outputs = outputs
        self.tf32 = math == "tf32"
        self.steps: list[dict[str, Any]] = []
        self.families: set[Family] = set()
        self.images: dict[int, Place] = {}
        """Values that lie N, H, W, C in temporaries, whatever is at the border."""

    def emit(self, product: Product) -> None:
        """Appends the steps of a product or a convolution with what follows it.

        Raises:
            UnsupportedError: The kernels cannot compute it, for the reason in the message.
        """
        self.places.check_scalars(product.scalars, product.epilogue)
        node = self.graph.nodes[product.anchor]
        if node.op == "matmul":
            self._matmul(product, node)
        else:
            self._convolution(product, node)

    # ---- products --------------------------------------------------------------------------

    def _matmul(self, product: Product, node: Node) -> None:
        if product.transpose_left:
            raise UnsupportedError("MatMul: CUTLASS's kernels here read the left matrix by rows")
        sizes = layout_of_product(self.graph, product)
        b, order = self.plain(product.right), "columns" if product.transpose_right else "rows"
        fields = {
            "m": sizes.m,
            "n": sizes.n,
            "k": sizes.k,
            "batch": sizes.batch,
            **{f"stride_{name}": stride for name, stride in sizes.strides.items()},
        }
        family = self._family("gemm", node, product, order, sizes.k, sizes.n)
        self.gemm(node, family, fields, {"a": self.plain(product.left), "b": b})
        self._ends(product, self.plain)
        self.steps[-1]["d"] = self.plain(product.result, write=True)

    def plain(self, index: int, write: bool = False) -> Place:
        """Returns the place of a row-major value.

        Raises:
            UnsupportedError: The value is stored with its channels innermost.
        """
        if self.formats.get(index) == NHWC or index in self.images:
            raise UnsupportedError("MatMul: an operand whose channels lie innermost")
        return self.places.write(index) if write else self.places.read(index)

    def gemm(
        self, node: Node, family: Family, sizes: dict[str, int], operands: dict[str, Place]
    ) -> None:
        """Appends the step of a product.

        Args:
            node: The node that is computed.
            family: The family of its kernels.
            sizes: The sizes and strides in elements.
            operands: The places of its operands.

        Raises:
            UnsupportedError: A size has more than 31 bits.
        """
        if max(sizes.values()) >= LARGEST:
            raise UnsupportedError(f"{onnx_type(node.op)}: sizes of more than 31 bits")
        self.step("gemm", node, family, {**sizes, **operands})

    def _family(self, op: str, node: Node, product: Product, order: str, *rows: int) -> Family:
        math = node.type.dtype
        if math == "float32":
            if not self.tf32:
                raise UnsupportedError(
                    f"{onnx_type(node.op)}: CUTLASS's kernels here round float32 to tf32"
                )
            math = "tf32"
        return Family(op, math, order, product.epilogue, row_alignment(node, math, *rows))

    def step(self, op: str, node: Node, family: Family, fields: dict[str, Any]) -> None:
        """Appends a step, and records that its family is needed."""
        self.families.add(family)
        self.steps.append(
            {
                "op": op,
                "name": node.name or f"{node.op} {node.index}",
                "family": family.name,
                "dtype": node.type.dtype,
                "epilogue": family.activation,
                **fields,
            }
        )

    def _ends(self, product: Product, read: Callable[[int], Place]) -> None:
        if product.bias is not None:
            self.steps[-1]["bias"] = self.places.read(product.bias)
        if product.residual is not None:
            self.source(product.residual, read)

    def source(self, index: int, read: Callable[[int], Place]) -> None:
        """Makes the last step add another tensor."""
        at = len(self.steps) - 1
        residual = read(index)  # may put a transposition behind this step
        if len(self.steps) > at + 1:
            self.steps.append(self.steps.pop(at))
        self.steps[-1]["c"] = residual

    # ---- convolutions ----------------------------------------------------------------------

    def _convolution(self, product: Product, node: Node) -> None:
        filters = filters_of(node, self.places.constants(product.right))
        sizes = convolved(node, self.graph.nodes[product.left].type.shape, filters.shape[1:3])
        op = "gemm" if sizes.pointwise else "conv"
        family = self._family(op, node, product, "columns", sizes.channels, sizes.filters)
        self.convolve(node, product.left, sizes, family, filters)
        self._ends(product, self.reader(node))
        self.finish(node, product.result)

    def convolve(
        self, node: Node, data: int, sizes: Convolved, family: Family, filters: np.ndarray
    ) -> None:
        """Appends the step of a convolution, without its result and without what it adds."""
        size = max(node.type.bytes // int(np.prod(node.type.shape)), 1)
        most = max(int(np.prod(sizes.image)), int(np.prod(sizes.result)), filters.size)
        if most * size >= LARGEST:
            raise UnsupportedError(f"{onnx_type(node.op)}: tensors of more than 31 bits")
        operands = {"a": self.reader(node)(data), "b": self.places.constant(filters)}
        if sizes.pointwise:
            self.gemm(node, family, sizes.product(), operands)
        else:
            self.step("conv", node, family, {**sizes.fields(), **operands})

    def reader(self, node: Node) -> Callable[[int], Place]:
        """Returns the function with which a convolution reads images."""
        return self.places.read if layout(node) == "NHWC" else self.image

    def finish(self, node: Node, result: int) -> None:
        """Makes the last step, a convolution, write the value of a node."""
        if layout(node) == "NHWC":
            self.steps[-1]["d"] = self.places.write(result)
        else:
            self._write_image(result)

    def _is_stored(self, index: int) -> bool:
        """Returns whether what crosses the border for a value has its channels innermost."""
        return self.formats.get(index) == NHWC or not differs(self.graph.nodes[index].type)

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


def row_alignment(node: Node, math: str, *rows: int) -> int:
    """Returns the widest alignment with which rows of so many elements can be read.

    Raises:
        UnsupportedError: There is none.
    """
    align = alignment(math, *rows)
    if align is None:
        raise UnsupportedError(
            f"{onnx_type(node.op)}: rows of {' and '.join(map(str, rows))} elements of {math}, "
            f"which are no multiples of {ALIGNMENTS[math][-1]}"
        )
    return align


def _stored(shape: Ints) -> Ints:
    return tuple(shape[axis] for axis in TO_STORED[NHWC])
