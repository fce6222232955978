"""Wraps TensorRT's network definition and aligns the shapes of operands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from collage_engine.model.numpy_types import numpy_type
from collage_engine.records.errors import UnsupportedError

if TYPE_CHECKING:
    from collage_engine.toolchains.tensorrt.library import Api

Ints = Sequence[int]

MIDDLE = 128
"""The zero point of uint8 with which its values are those of int8, shifted."""

NAMES = {
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BF16",
    "int8": "INT8",
    "uint8": "UINT8",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
}
"""The name in TensorRT's ``DataType`` of each element type."""


def last(tensor: Any, axis: int) -> int:
    """Returns an axis counted from the front."""
    return axis % max(len(tensor.shape), 1)


class Net:
    """Adds layers to a network and returns their first output."""

    def __init__(self, api: Api, network: Any) -> None:
        self.api = api
        self.trt = api.trt
        self.network = network
        self._kept: list[Any] = []
        """Arrays that TensorRT only points to until the engine is built."""

    # ---- types and weights -----------------------------------------------------------------

    def dtype(self, name: str) -> Any:
        """Returns TensorRT's element type of a name.

        Raises:
            UnsupportedError: This release has no such type.
        """
        if name == "int64" and not self.api.wide_integers:
            name = "int32"
        found = getattr(self.trt.DataType, NAMES.get(name, ""), None)
        if found is None:
            raise UnsupportedError(f"{self.api.flavour.title} {self.api.version} has no {name}")
        return found

    def name_of(self, dtype: Any) -> str:
        """Returns the name of one of TensorRT's element types."""
        return next(n for n, t in NAMES.items() if getattr(self.trt.DataType, t, None) == dtype)

    def weights(self, array: np.ndarray) -> Any:
        """Returns an array as weights, which live as long as this object."""
        name = str(array.dtype)
        if name == "int64" and not self.api.wide_integers:
            limits = np.iinfo(np.int32)
            array = np.clip(array, limits.min, limits.max).astype(np.int32)
            name = "int32"
        dtype = self.dtype(name)
        array = np.ascontiguousarray(array)
        self._kept.append(array)
        return self.trt.Weights(dtype, array.ctypes.data, array.size)

    def const(self, value: Any, dtype: str | None = None) -> Any:
        """Returns a constant tensor."""
        array = np.asarray(value)
        if dtype is not None:
            array = array.astype(numpy_type(dtype))
        shape = array.shape  # ascontiguousarray would make a scalar one-dimensional
        return self.out(self.network.add_constant(tuple(shape), self.weights(array)))

    def scalar(self, value: float, like: Any) -> Any:
        """Returns a constant of one element with the rank and type of another tensor."""
        name = self.name_of(like.dtype)
        return self.const(np.full((1,) * len(like.shape), value), name)

    def out(self, layer: Any, place: int = 0) -> Any:
        """Returns an output of a layer, by default the first.

        Raises:
            UnsupportedError: TensorRT did not add the layer.
        """
        if layer is None:
            raise UnsupportedError("TensorRT refused a layer")
        return layer.get_output(place)

    def need(self, owner: Any, name: str, what: str) -> Any:
        """Returns an attribute of this release's interface.

        Raises:
            UnsupportedError: The release lacks it; ``what`` is named in the message.
        """
        found = getattr(owner, name, None)
        if found is None:
            raise UnsupportedError(
                f"{self.api.flavour.title} {self.api.version} has no layer for {what}"
            )
        return found

    # ---- layers ----------------------------------------------------------------------------

    def cast(self, x: Any, dtype: Any) -> Any:
        """Returns the tensor converted to another element type."""
        if x.dtype == dtype:
            return x
        if hasattr(self.network, "add_cast"):
            return self.out(self.network.add_cast(x, dtype))
        layer = self.network.add_identity(x)  # how older releases say it
        layer.set_output_type(0, dtype)
        return self.out(layer)

    def identity(self, x: Any) -> Any:
        """Returns a new tensor with the same value."""
        return self.out(self.network.add_identity(x))

    def reshape(self, x: Any, shape: Ints) -> Any:
        """Returns the tensor with another shape."""
        if tuple(x.shape) == tuple(shape):
            return x
        layer = self.network.add_shuffle(x)
        layer.reshape_dims = tuple(shape)
        return self.out(layer)

    def transpose(self, x: Any, axes: Ints) -> Any:
        """Returns the tensor with its axes in another order."""
        if list(axes) == list(range(len(axes))):
            return x
        layer = self.network.add_shuffle(x)
        layer.first_transpose = self.trt.Permutation(list(axes))
        return self.out(layer)

    def with_rank(self, x: Any, rank: int) -> Any:
        """Returns the tensor with axes of one element in front, for broadcasting."""
        return self.reshape(x, (1,) * (rank - len(x.shape)) + tuple(x.shape))

    def aligned(self, *tensors: Any) -> list[Any]:
        """Returns the tensors with axes of one element in front, so that all have the same rank."""
        rank = max(len(t.shape) for t in tensors)
        return [self.with_rank(t, rank) for t in tensors]

    def binary(self, op: str, a: Any, b: Any) -> Any:
        """Returns an elementwise operation of two tensors, which are broadcast."""
        a, b = self.aligned(a, b)
        return self.out(
            self.network.add_elementwise(a, b, getattr(self.trt.ElementWiseOperation, op))
        )

    def unary(self, op: str, x: Any) -> Any:
        """Returns an elementwise operation of one tensor."""
        found = self.need(self.trt.UnaryOperation, op, op.lower())
        if not x.shape:  # unary layers want an axis
            return self.reshape(self.out(self.network.add_unary(self.reshape(x, (1,)), found)), ())
        return self.out(self.network.add_unary(x, found))

    def activation(
        self, kind: str, x: Any, alpha: float | None = None, beta: float | None = None
    ) -> Any:
        """Returns an activation with its parameters."""
        layer = self.network.add_activation(x, getattr(self.trt.ActivationType, kind))
        if alpha is not None:
            layer.alpha = alpha
        if beta is not None:
            layer.beta = beta
        return self.out(layer)

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        """Returns the elements of ``a`` where the condition holds, and those of ``b`` elsewhere."""
        return self.out(self.network.add_select(*self.aligned(condition, a, b)))

    def reduce(self, op: str, x: Any, axes: Iterable[int], keep: bool = True) -> Any:
        """Returns a reduction over some axes, which are kept with one element if ``keep``."""
        mask = self.mask(x, axes)
        if not mask:
            return x
        kind = getattr(self.trt.ReduceOperation, op)
        return self.out(self.network.add_reduce(x, kind, mask, keep))

    def mask(self, x: Any, axes: Iterable[int]) -> int:
        """Returns some axes as a bit mask."""
        return sum(1 << axis for axis in {last(x, a) for a in axes})

    def slice(
        self,
        x: Any,
        start: Ints,
        size: Ints,
        stride: Ints | None = None,
        mode: str = "",
        fill: Any = None,
    ) -> Any:
        """Returns a strided part of a tensor.

        Args:
            x: The tensor.
            start: The first index along each axis.
            size: The number of elements along each axis.
            stride: The step along each axis, by default 1.
            mode: What lies beyond the borders (FILL, CLAMP, REFLECT, WRAP), if anything does.
            fill: The value beyond the borders, for FILL.
        """
        steps = tuple(stride) if stride is not None else (1,) * len(size)
        layer = self.network.add_slice(x, tuple(start), tuple(size), steps)
        if mode:
            modes = getattr(self.trt, "SampleMode", None) or self.trt.SliceMode
            layer.mode = self.need(modes, mode, "padding")
        if fill is not None:
            layer.set_input(4, fill)
        return self.out(layer)

    def broadcast(self, x: Any, shape: Ints) -> Any:
        """Returns the tensor repeated to a shape."""
        x = self.with_rank(x, len(shape))
        if tuple(x.shape) == tuple(shape):
            return x
        strides = [int(d > 1) for d in x.shape]
        return self.slice(x, (0,) * len(shape), shape, strides)

    def concat(self, parts: Sequence[Any], axis: int) -> Any:
        """Returns tensors behind each other along an axis."""
        if len(parts) == 1:
            return parts[0]
        layer = self.network.add_concatenation(list(parts))
        layer.axis = axis
        return self.out(layer)

    def matmul(self, a: Any, b: Any) -> Any:
        """Returns the matrix product of two tensors."""
        none = self.trt.MatrixOperation.NONE
        a, b = self.aligned(a, b)
        return self.out(self.network.add_matrix_multiply(a, none, b, none))

    def gather(self, x: Any, indices: Any, axis: int) -> Any:
        """Returns the elements at some indices along an axis."""
        return self.out(self.network.add_gather(x, indices, axis))

    def quantized(self, x: Any, scale: np.ndarray, axis: int) -> Any:
        """Returns ``x`` as int8 around 0, by one scale or by one for every channel of an axis."""
        factor = self.const(_flat(scale), self.name_of(x.dtype))
        if self.api.strongly_typed:
            layer = self.network.add_quantize(x, factor, self.dtype("int8"))
        else:
            layer = self.network.add_quantize(x, factor)
        if scale.size > 1:
            layer.axis = axis
        return self.out(layer)

    def dequantized(self, x: Any, scale: np.ndarray, axis: int, dtype: str) -> Any:
        """Returns values of int8 around 0 in floating point; the inverse of ``quantized``."""
        factor = self.const(_flat(scale), dtype)
        if self.api.strongly_typed:
            layer = self.network.add_dequantize(x, factor, self.dtype(dtype))
        else:
            layer = self.network.add_dequantize(x, factor)
        if scale.size > 1:
            layer.axis = axis
        return self.out(layer)

    def softmax(self, x: Any, axis: int) -> Any:
        """Returns the softmax along an axis."""
        layer = self.network.add_softmax(x)
        layer.axes = 1 << last(x, axis)
        return self.out(layer)


def _flat(scale: np.ndarray) -> np.ndarray:
    """Returns a scale in the shape that TensorRT takes: a scalar, or a vector."""
    return scale.reshape(()) if scale.size == 1 else scale.reshape(-1)
