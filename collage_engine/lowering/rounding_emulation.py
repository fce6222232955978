"""Finds out what rounding the operands of chosen products does to a model's outputs.

One session over the cleaned ONNX model serves all choices. Every product (a convolution or a
matrix product) reads its operands through an expression that rounds them where a scalar input of
the session is set, and leaves them as they are where it is zero. So an evaluation of a choice is
one run per sample, and nothing is built.

An activation x is rounded by Veltkamp's splitting (Dekker 1971): with c = 2^(24−p) + 1 the
float32 expression ``c·x − (c·x − x)`` is x rounded to p bits, and with c = 0 it is x. For float16
the result is also multiplied by 2^112 and by 2^−112, which makes it infinite from 2^16 on; that it
has fewer bits below its normal numbers is not emulated. A constant weight w is rounded once, as the
kernels round it, and read as ``w + s·(rounded − w)`` with s = 0 or 1.

What a toolchain rounds besides (results of products, sums) and in which order it adds is not
emulated, so a choice is checked on what was really built: over five convolutional networks the real
error was 0.67 to 1.22 times the emulated one on TVM, and up to 1.6 times on oneDNN.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from collage_engine.kernels.rounding import balanced
from collage_engine.machine.loader.run_artifact import error_of
from collage_engine.model.onnx_external import mapped_weights
from collage_engine.records.graph import Node, OperatorNumber
from collage_engine.records.precision import BFLOAT16, FLOAT16, PRODUCTS, TF32
from collage_engine.support.errors import ToolchainError, short_reason
from collage_engine.toolchains.registry import onnx_evaluator

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

MANTISSA_BITS = {BFLOAT16: 8, TF32: 11, FLOAT16: 11}
"""Bits of the significand of each reduced precision, the implicit one included (IEEE 754 for
float16)."""
BEYOND_RANGE = np.float32(2.0**112)
"""What makes float32 overflow where float16 does: 2^16 times it is 2^128."""
ONNX_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""ONNX operators of which one node is one product of the dataflow graph."""
LARGEST_BYTES = 1 << 30
"""Bytes of weights up to which a model is emulated, since the session holds a second copy of them;
a model whose weights stay in their file (``model/onnx_external.py``) is larger."""


def emulated_products(model: ImportedModel) -> dict[OperatorNumber, int]:
    """Return the products that can be emulated, in the order of the cleaned ONNX model.

    Left out are depthwise convolutions, by whose rounding next to nothing is won, and products that
    share an ONNX node with other operators, such as those of an Attention.

    Returns:
        By operator number of the product the place of its node in the cleaned ONNX model.
    """
    graph = model.graph
    makers = {
        name: place for place, node in enumerate(model.onnx.graph.node) for name in node.output
    }
    numbers: dict[int, list[OperatorNumber]] = {}
    for node in graph.nodes:
        if node.op not in PRODUCTS or node.type.dtype != "float32":
            continue
        place = makers.get(graph.values[_named(model, node.index)].onnx_value or "")
        if place is None or model.onnx.graph.node[place].op_type not in ONNX_PRODUCTS:
            continue
        if not _depthwise(model, node):
            numbers.setdefault(place, []).append(node.index)
    return {of[0]: place for place, of in sorted(numbers.items()) if len(of) == 1}


def _named(model: ImportedModel, index: OperatorNumber) -> OperatorNumber:
    """Return the operator, or the first one after it whose value the cleaned ONNX model has.

    A convolution before its bias is added has none, for example.
    """
    graph = model.graph
    while not graph.values[index].onnx_value and len(graph.users[index]) == 1:
        (index,) = graph.users[index]
    return index


def _depthwise(model: ImportedModel, node: Node) -> bool:
    """Tell whether a product is a convolution of every channel by itself."""
    groups = int(node.attributes.get("groups", 1))
    layout = str(node.attributes.get("data_layout", ""))
    if groups == 1 or "C" not in layout:
        return False
    return groups == model.graph.values[node.inputs[0]].type.shape[layout.index("C")]


class RoundingEmulation:
    """The errors of a model's outputs for any choice of products whose operands are rounded.

    Attributes:
        products: The operator numbers of the products that can be chosen, with their ONNX nodes.
    """

    def __init__(self, model: ImportedModel, precision: str, *, threads: int) -> None:
        """Open the session.

        Args:
            model: The imported model.
            precision: The precision that operands are rounded to: a key of ``MANTISSA_BITS``.
            threads: Threads of the session.

        Raises:
            ToolchainError: The toolchain that evaluates ONNX refuses the model, or its weights are
                too large for a second copy.
        """
        if model.onnx.ByteSize() > LARGEST_BYTES or mapped_weights(model.onnx.graph.initializer):
            raise ToolchainError("the model's weights are too large to emulate their rounding")
        self.products = emulated_products(model)
        self._outputs = [output.name for output in model.onnx.graph.output]
        self._inputs = {value.name for value in model.onnx.graph.input}
        bits = MANTISSA_BITS[precision]
        self._switches = {"data": (np.float32(2.0 ** (24 - bits) + 1), 0), "weight": (1, 0)}
        """By scalar input its value where a product is rounded, and where it is not."""
        if precision == FLOAT16:
            self._switches["up"] = (BEYOND_RANGE, 1)
            self._switches["down"] = (1 / BEYOND_RANGE, 1)
        written = self._switched(model, precision).SerializeToString()
        try:
            self._session = onnx_evaluator().open_onnx(written, threads=threads, optimise=True)
        except Exception as error:  # a library's error classes have no common base but this
            raise ToolchainError(short_reason(error)) from error

    def errors(
        self,
        chosen: Collection[OperatorNumber],
        inputs: Mapping[str, np.ndarray],
        truth: Sequence[np.ndarray],
    ) -> list[float]:
        """Return the relative error of each output, in the model's order of outputs.

        Args:
            chosen: Operator numbers of the products whose operands are rounded; others are ignored.
            inputs: The model's inputs by name.
            truth: Its true outputs.
        """
        feeds = {name: value for name, value in inputs.items() if name in self._inputs}
        for product in self.products:
            for what, (rounded, full) in self._switches.items():
                value = rounded if product in chosen else full
                feeds[_scalar(product, what)] = np.array(value, np.float32)
        outputs = self._session.run(self._outputs, feeds)
        return [error_of(y, r)[1] for y, r in zip(outputs, truth, strict=True)]

    def _switched(self, model: ImportedModel, precision: str) -> ModelProto:
        """Return the cleaned model in which every product's rounding has its two scalar inputs."""
        switched = ModelProto()
        switched.CopyFrom(model.onnx)
        graph = switched.graph
        weights = {tensor.name: tensor for tensor in graph.initializer}
        by_place = {place: product for product, place in self.products.items()}
        nodes: list[NodeProto] = []
        constants: list[TensorProto] = []
        for index, node in enumerate(graph.node):
            product = by_place.get(index)
            for side in range(2) if product is not None else ():
                assert product is not None
                name, given = f"collage/{product}/{side}", node.input[side]
                if given in weights:
                    array = numpy_helper.to_array(weights[given])
                    change = _rounded(array, node, precision) - array
                    constants.append(numpy_helper.from_array(change, f"{name}/change"))
                    parts = [
                        ("Mul", [f"{name}/change", _scalar(product, "weight")], f"{name}/moved"),
                        ("Add", [given, f"{name}/moved"], name),
                    ]
                else:
                    rounded = f"{name}/rounded" if precision == FLOAT16 else name
                    parts = [
                        ("Mul", [given, _scalar(product, "data")], f"{name}/high"),
                        ("Sub", [f"{name}/high", given], f"{name}/low"),
                        ("Sub", [f"{name}/high", f"{name}/low"], rounded),
                    ]
                    # With a scalar of 0 the high part is 0, and 0 − (0 − x) is x.
                    if precision == FLOAT16:  # and in its range
                        parts += [
                            ("Mul", [rounded, _scalar(product, "up")], f"{name}/up"),
                            ("Mul", [f"{name}/up", _scalar(product, "down")], name),
                        ]
                nodes += [helper.make_node(op, read, [made]) for op, read, made in parts]
                node.input[side] = name
            nodes.append(node)
        written = GraphProto(node=nodes)
        del graph.node[:]
        graph.node.extend(written.node)
        graph.initializer.extend(constants)
        for product in self.products:
            for what in self._switches:
                graph.input.append(
                    helper.make_tensor_value_info(_scalar(product, what), TensorProto.FLOAT, [])
                )
        return switched


def _scalar(product: OperatorNumber, what: str) -> str:
    """Return the name of a scalar input that switches a product's rounding of data or weights."""
    return f"collage/{product}/{what}"


def _rounded(weight: np.ndarray, node: NodeProto, precision: str) -> np.ndarray:
    """Return a constant operand as kernels round it.

    Kernels in bfloat16 round weights with balanced errors (``kernels/rounding.py``), where it is
    clear along which axes a product sums; everything else is rounded to the nearest.

    Args:
        weight: The operand, as the ONNX node takes it.
        node: The product.
        precision: The precision.
    """
    if precision == BFLOAT16 and weight.ndim >= 2 and node.op_type != "ConvTranspose":
        swapped = node.op_type == "MatMul" or (
            node.op_type == "Gemm" and not any(a.name == "transB" and a.i for a in node.attribute)
        )
        rows = np.swapaxes(weight, -1, -2) if swapped else weight
        axes = 1 if node.op_type == "Conv" else rows.ndim - 1
        flat = rows.reshape(math.prod(rows.shape[:axes]), -1)
        found = balanced(flat).reshape(rows.shape)
        return np.swapaxes(found, -1, -2) if swapped else found
    if precision == FLOAT16:
        with np.errstate(over="ignore"):
            return weight.astype(np.float16).astype(np.float32)
    high: np.ndarray = weight * np.float32(2.0 ** (24 - MANTISSA_BITS[precision]) + 1)
    nearest: np.ndarray = high - (high - weight)
    return nearest
