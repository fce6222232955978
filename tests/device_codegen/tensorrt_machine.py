"""A TensorRT network carried out in numpy, layer by layer, as TensorRT's documentation has them.

TensorRT itself runs nothing without a device; its network definition can be read, though.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

UNARY = {
    "ABS": np.abs,
    "ACOS": np.arccos,
    "ACOSH": np.arccosh,
    "ASIN": np.arcsin,
    "ASINH": np.arcsinh,
    "ATAN": np.arctan,
    "ATANH": np.arctanh,
    "CEIL": np.ceil,
    "COS": np.cos,
    "COSH": np.cosh,
    "EXP": np.exp,
    "FLOOR": np.floor,
    "ISINF": np.isinf,
    "ISNAN": np.isnan,
    "LOG": np.log,
    "NEG": np.negative,
    "NOT": np.logical_not,
    "RECIP": np.reciprocal,
    "ROUND": np.rint,
    "SIGN": np.sign,
    "SIN": np.sin,
    "SINH": np.sinh,
    "SQRT": np.sqrt,
    "TAN": np.tan,
}
BINARY = {
    "SUM": np.add,
    "SUB": np.subtract,
    "PROD": np.multiply,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "POW": np.power,
    "EQUAL": np.equal,
    "GREATER": np.greater,
    "LESS": np.less,
    "AND": np.logical_and,
    "OR": np.logical_or,
    "XOR": np.logical_xor,
    "FLOOR_DIV": np.floor_divide,
}
REDUCE = {"AVG": np.mean, "MAX": np.max, "MIN": np.min, "PROD": np.prod, "SUM": np.sum}


class NotModelled(Exception):
    """A layer that this interpreter does not know."""


def erf(x: np.ndarray) -> np.ndarray:
    from math import erf as one

    return np.vectorize(one, otypes=[x.dtype])(x)


class Machine:
    """Runs a network on arrays by input name."""

    def __init__(self, trt: Any, network: Any) -> None:
        self.trt = trt
        self.network = network
        self.types = {
            trt.DataType.FLOAT: np.float32,
            trt.DataType.HALF: np.float16,
            trt.DataType.INT8: np.int8,
            trt.DataType.UINT8: np.uint8,
            trt.DataType.INT32: np.int32,
            trt.DataType.INT64: np.int64,
            trt.DataType.BOOL: np.bool_,
        }

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        values = dict(inputs)
        for number in range(self.network.num_layers):
            layer = self.network.get_layer(number)
            kind = layer.type.name
            operation = getattr(self, f"_{kind.lower()}", None)
            if operation is None:
                raise NotModelled(kind)
            layer.__class__ = getattr(self.trt, _CLASSES.get(kind) or f"I{_camel(kind)}Layer")
            given = [layer.get_input(i) for i in range(layer.num_inputs)]
            found = operation(layer, *(values[t.name] if t is not None else None for t in given))
            results = found if isinstance(found, tuple) else (found,)
            for place, result in enumerate(results):
                tensor = layer.get_output(place)
                assert np.shape(result) == tuple(tensor.shape), (kind, np.shape(result))
                values[tensor.name] = np.asarray(result).astype(self.types[tensor.dtype])
        outputs = [self.network.get_output(i) for i in range(self.network.num_outputs)]
        return [values[tensor.name] for tensor in outputs]

    # ---- elementwise ---------------------------------------------------------------------------

    def _constant(self, layer: Any) -> np.ndarray:
        return np.array(layer.weights).reshape(tuple(layer.shape))

    def _identity(self, layer: Any, x: np.ndarray) -> np.ndarray:
        return x

    def _cast(self, layer: Any, x: np.ndarray) -> np.ndarray:
        return x.astype(self.types[layer.get_output(0).dtype])

    def _elementwise(self, layer: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        assert a.ndim == b.ndim and a.dtype == b.dtype
        name = layer.op.name
        if name == "DIV":
            return np.trunc(a / b).astype(a.dtype) if a.dtype.kind in "iu" else a / b
        return BINARY[name](a, b)

    def _unary(self, layer: Any, x: np.ndarray) -> np.ndarray:
        return erf(x) if layer.op.name == "ERF" else UNARY[layer.op.name](x)

    def _activation(self, layer: Any, x: np.ndarray) -> np.ndarray:
        kind, alpha, beta = layer.type.name, layer.alpha, layer.beta
        match kind:
            case "RELU":
                return np.maximum(x, 0)
            case "SIGMOID":
                return 1 / (1 + np.exp(-x))
            case "TANH":
                return np.tanh(x)
            case "CLIP":
                return np.clip(x, alpha, beta)
            case "LEAKY_RELU":
                return np.where(x >= 0, x, alpha * x)
            case "GELU_ERF":
                return 0.5 * x * (1 + erf(x * 0.5**0.5))
            case "GELU_TANH":
                return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
        raise NotModelled(kind)

    def _parametric_relu(self, layer: Any, x: np.ndarray, slope: np.ndarray) -> np.ndarray:
        return np.where(x >= 0, x, slope * x)

    def _select(self, layer: Any, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(c, a, b)

    def _quantize(self, layer: Any, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(x / _wide(scale, x, layer.axis)), -128, 127)

    def _dequantize(self, layer: Any, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x.astype(scale.dtype) * _wide(scale, x, layer.axis)

    # ---- shapes --------------------------------------------------------------------------------

    def _shuffle(self, layer: Any, x: np.ndarray) -> np.ndarray:
        x = x.transpose(list(layer.first_transpose)[: x.ndim])
        try:
            x = x.reshape(tuple(layer.reshape_dims))
        except (TypeError, ValueError):  # none was asked for
            assert layer.get_output(0).shape == x.shape
        return x.transpose(list(layer.second_transpose)[: x.ndim])

    def _slice(self, layer: Any, x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        start, size, stride = (tuple(v) for v in (layer.start, layer.shape, layer.stride))
        mode = layer.mode.name
        inside = np.ones(size, bool)
        places = []
        for axis, extent in enumerate(x.shape):
            at = start[axis] + stride[axis] * np.arange(size[axis])
            match mode:
                case "CLAMP":
                    at = np.clip(at, 0, extent - 1)
                case "WRAP":
                    at %= extent
                case "REFLECT":
                    period = max(2 * (extent - 1), 1)
                    at = np.abs((at + extent - 1) % period - (extent - 1))
                case "FILL":
                    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
                    inside &= ((at >= 0) & (at < extent)).reshape(shape)
                    at = np.clip(at, 0, extent - 1)
                case _:
                    assert (at >= 0).all() and (at < extent).all()
            places.append(at)
        found = x[np.ix_(*places)] if places else x
        return np.where(inside, found, rest[-1]) if mode == "FILL" else found

    def _concatenation(self, layer: Any, *parts: np.ndarray) -> np.ndarray:
        return np.concatenate(parts, layer.axis)

    def _gather(self, layer: Any, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        assert (indices >= 0).all()
        match layer.mode.name:
            case "DEFAULT":
                return np.take(x, indices, layer.axis)
            case "ELEMENT":
                return np.take_along_axis(x, indices, layer.axis)
        batch = layer.num_elementwise_dims
        if batch == 0:
            return x[tuple(np.moveaxis(indices, -1, 0))]
        flat = [
            self._nd(a, i)
            for a, i in zip(
                x.reshape(-1, *x.shape[batch:]),
                indices.reshape(-1, *indices.shape[batch:]),
                strict=True,
            )
        ]
        return np.stack(flat).reshape(tuple(layer.get_output(0).shape))

    def _nd(self, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        return x[tuple(np.moveaxis(indices, -1, 0))]

    def _scatter(
        self, layer: Any, x: np.ndarray, indices: np.ndarray, updates: np.ndarray
    ) -> np.ndarray:
        x = x.copy()
        assert (indices >= 0).all()
        if layer.mode.name == "ELEMENT":
            for place in np.ndindex(*indices.shape):
                at = list(place)
                at[layer.axis] = indices[place]
                x[tuple(at)] = updates[place]
        else:
            x[tuple(np.moveaxis(indices, -1, 0))] = updates
        return x

    def _einsum(self, layer: Any, *inputs: np.ndarray) -> np.ndarray:
        return np.einsum(layer.equation, *inputs)

    # ---- reductions ----------------------------------------------------------------------------

    def _reduce(self, layer: Any, x: np.ndarray) -> np.ndarray:
        axes = _axes(layer.axes, x)
        return REDUCE[layer.op.name](x, axis=axes, keepdims=layer.keep_dims)

    def _topk(self, layer: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (axis,) = _axes(layer.axes, x)
        keys = -x if layer.op.name == "MAX" else x
        order = np.argsort(keys, axis, kind="stable")
        order = np.take(order, range(layer.k), axis)
        return np.take_along_axis(x, order, axis), order

    def _softmax(self, layer: Any, x: np.ndarray) -> np.ndarray:
        axes = _axes(layer.axes, x)
        e = np.exp(x - x.max(axes, keepdims=True))
        return e / e.sum(axes, keepdims=True)

    def _normalization(
        self, layer: Any, x: np.ndarray, scale: np.ndarray, shift: np.ndarray
    ) -> np.ndarray:
        axes = _axes(layer.axes, x)
        apart = x - x.mean(axes, keepdims=True)
        variance = (apart * apart).mean(axes, keepdims=True)
        return apart / np.sqrt(variance + layer.epsilon) * scale + shift

    def _cumulative(self, layer: Any, x: np.ndarray, axis: np.ndarray) -> np.ndarray:
        total = np.cumsum(x, int(axis), dtype=x.dtype)
        return total - x if layer.exclusive else total

    def _resize(self, layer: Any, x: np.ndarray) -> np.ndarray:
        """As ONNX defines it, whose words for it these are."""
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        how = {
            "HALF_PIXEL": "half_pixel",
            "ASYMMETRIC": "asymmetric",
            "ALIGN_CORNERS": "align_corners",
        }[layer.coordinate_transformation.name]
        if layer.selector_for_single_pixel.name == "UPPER":
            how = "pytorch_half_pixel"
        mode = layer.resize_mode.name.lower()
        more: dict[str, Any] = {}
        if mode == "nearest":
            more["nearest_mode"] = {
                "HALF_DOWN": "round_prefer_floor",
                "HALF_UP": "round_prefer_ceil",
                "FLOOR": "floor",
                "CEIL": "ceil",
            }[layer.nearest_rounding.name]
        if mode == "cubic":
            more["cubic_coeff_a"] = layer.cubic_coeff
            more["exclude_outside"] = int(layer.exclude_outside)
        node = helper.make_node(
            "Resize",
            ["x", "", "", "sizes"],
            ["y"],
            mode=mode,
            coordinate_transformation_mode=how,
            **more,
        )
        sizes = np.array(tuple(layer.shape), np.int64)
        found = ReferenceEvaluator(node).run(None, {"x": x, "sizes": sizes})
        return np.asarray(found[0])

    # ---- anchors -------------------------------------------------------------------------------

    def _matrix_multiply(self, layer: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.matmul(a, b)

    def _convolution(self, layer: Any, x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        window = tuple(layer.kernel_size_nd)
        groups, many = layer.num_groups, layer.num_output_maps
        kernel = rest[0] if rest else np.array(layer.kernel)
        kernel = kernel.reshape(many, x.shape[1] // groups, *window)
        y = _convolved(
            x,
            kernel,
            layer.stride_nd,
            layer.dilation_nd,
            layer.pre_padding,
            layer.post_padding,
            groups,
        )
        bias = np.array(layer.bias)
        return y + bias.reshape(1, -1, *(1,) * len(window)) if bias.size else y

    def _deconvolution(self, layer: Any, x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        """Each element spreads its kernel over the result."""
        window = tuple(layer.kernel_size_nd)
        groups, many = layer.num_groups, layer.num_output_maps
        kernel = np.array(layer.kernel) if not rest else rest[0]
        kernel = kernel.reshape(x.shape[1], many // groups, *window)
        stride, dilation = tuple(layer.stride_nd), tuple(layer.dilation_nd)
        space = [
            (n - 1) * s + (w - 1) * d + 1
            for n, s, w, d in zip(x.shape[2:], stride, window, dilation, strict=True)
        ]
        y = np.zeros((x.shape[0], many, *space), x.dtype)
        per_in, per_out = x.shape[1] // groups, many // groups
        for tap in np.ndindex(*window):
            region = tuple(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(tap, dilation, x.shape[2:], stride, strict=True)
            )
            for g in range(groups):
                part = np.einsum(
                    "nc...,co->no...",
                    x[:, g * per_in : (g + 1) * per_in],
                    kernel[(slice(g * per_in, (g + 1) * per_in), slice(None), *tap)],
                )
                y[(slice(None), slice(g * per_out, (g + 1) * per_out), *region)] += part
        cut = tuple(
            slice(b, n - e)
            for b, e, n in zip(layer.pre_padding, layer.post_padding, space, strict=True)
        )
        return y[(slice(None), slice(None), *cut)]

    def _pooling(self, layer: Any, x: np.ndarray) -> np.ndarray:
        average = layer.type.name == "AVERAGE"
        window, stride = tuple(layer.window_size_nd), tuple(layer.stride_nd)
        before, after = tuple(layer.pre_padding), list(layer.post_padding)
        out = tuple(layer.get_output(0).shape)[2:]
        for d, size in enumerate(out):  # rounding up reads beyond the padding
            reach = (size - 1) * stride[d] + window[d] - x.shape[2 + d] - before[d]
            if layer.padding_mode.name == "EXPLICIT_ROUND_UP":
                after[d] = max(after[d], reach)
        pads = [(0, 0), (0, 0), *zip(before, after, strict=True)]

        def windows(values: np.ndarray, fill: float) -> np.ndarray:
            wide = np.pad(values, pads, constant_values=fill)
            found = sliding_window_view(wide, window, axis=tuple(range(2, x.ndim)))
            return found[(slice(None), slice(None), *(slice(None, None, s) for s in stride))]

        axes = tuple(range(x.ndim, 2 * x.ndim - 2))
        if not average:
            return windows(x, -np.inf).max(axes)
        total = windows(x, 0.0).sum(axes)
        if layer.average_count_excludes_padding:
            return total / windows(np.ones_like(x), 0.0).sum(axes)
        return total / np.prod(window)


_CLASSES = {
    "TOPK": "ITopKLayer",
    "SOFTMAX": "ISoftMaxLayer",
    "PARAMETRIC_RELU": "IParametricReLULayer",
    "ELEMENTWISE": "IElementWiseLayer",
}


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _axes(mask: int, x: np.ndarray) -> tuple[int, ...]:
    return tuple(axis for axis in range(x.ndim) if mask >> axis & 1)


def _wide(scale: np.ndarray, x: np.ndarray, axis: int) -> np.ndarray:
    """A scale for each channel along its axis, or one for all."""
    if scale.size == 1:
        return scale.reshape(())
    return scale.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def _convolved(
    x: np.ndarray, w: np.ndarray, stride: Any, dilation: Any, before: Any, after: Any, groups: int
) -> np.ndarray:
    x = np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)])
    rank = x.ndim - 2
    reach = [(w.shape[2 + d] - 1) * dilation[d] + 1 for d in range(rank)]
    windows = sliding_window_view(x, reach, axis=tuple(range(2, 2 + rank)))
    steps = tuple(slice(None, None, stride[d]) for d in range(rank))
    taps = tuple(slice(None, None, dilation[d]) for d in range(rank))
    windows = windows[(slice(None), slice(None), *steps, *taps)]
    per, many = w.shape[1], w.shape[0] // groups
    parts = []
    for g in range(groups):
        axes = list(range(2 + rank, 2 + 2 * rank))
        parts.append(
            np.tensordot(
                windows[:, g * per : (g + 1) * per],
                w[g * many : (g + 1) * many],
                ([1, *axes], [1, *range(2, 2 + rank)]),
            )
        )
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)
