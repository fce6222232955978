"""An ONNX graph run by torch eagerly: every operator is the torch function its users call.

What depends on weights alone is computed once, batch normalisation is torch's own, and GELU
written out with erf is torch's GELU, as in the models that exporters take apart. Nothing else is
fused: this is eager mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper

Step = tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...]]


class Program:
    """Steps over a table of values."""

    def __init__(self, path: str, dtype: torch.dtype | None) -> None:
        model = onnx.load(path)
        self.dtype = dtype
        self.opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        self.known: dict[str, Any] = {"": None}
        for tensor in model.graph.initializer:
            self.known[tensor.name] = self._tensor(numpy_helper.to_array(tensor))
        self.inputs = [i.name for i in model.graph.input if i.name not in self.known]
        self.outputs = [o.name for o in model.graph.output]
        self.steps: list[Step] = []
        for node in model.graph.node:
            self._add(node)
        self._gelu()

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        value = torch.from_numpy(np.array(array))
        if self.dtype is not None and value.dtype == torch.float32:
            return value.to(self.dtype)
        return value

    def bind(self, inputs: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        return {name: self._tensor(inputs[name]) for name in self.inputs}

    def __call__(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        values = {**self.known, **inputs}
        for function, taken, given in self.steps:
            result = function(*[values[name] for name in taken])
            if len(given) == 1:
                values[given[0]] = result
            else:
                values.update(zip(given, result, strict=False))
        return [values[name] for name in self.outputs]

    def _add(self, node: onnx.NodeProto) -> None:
        make = MAKERS.get(node.op_type)
        if make is None:
            raise NotImplementedError(f"torch eager here has no {node.op_type}")
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        consts = [self.known.get(name) for name in node.input]
        function = make(attributes | {"opset": self.opset}, consts)
        # Masks and saved statistics are for training.
        taken, given = (
            tuple(node.input),
            tuple(node.output if node.op_type == "Split" else node.output[:1]),
        )
        if all(name in self.known for name in taken):
            result = function(*[self.known[name] for name in taken])
            results = result if len(given) > 1 else [result]
            self.known.update(zip(given, results, strict=False))
            return
        self.steps.append((function, taken, given))

    def _gelu(self) -> None:
        """x·½·(1 + erf(x/√2)) as one call."""
        maker = {given[0]: k for k, (_, _, given) in enumerate(self.steps)}
        gone: set[int] = set()
        for place, (function, taken, _) in enumerate(self.steps):
            if function is not torch.erf:
                continue
            divided = self.steps[maker[taken[0]]]
            after = [k for k, s in enumerate(self.steps) if self.steps[place][2][0] in s[1]]
            if len(after) != 1 or divided[0] is not torch.div:
                continue
            source = divided[1][0]
            product = [k for k, s in enumerate(self.steps) if self.steps[after[0]][2][0] in s[1]]
            if len(product) != 1 or source not in self.steps[product[0]][1]:
                continue
            halved = [k for k, s in enumerate(self.steps) if self.steps[product[0]][2][0] in s[1]]
            if len(halved) != 1 or self.steps[halved[0]][0] is not torch.mul:
                continue
            last = halved[0]
            self.steps[last] = (F.gelu, (source,), self.steps[last][2])
            gone |= {maker[taken[0]], place, after[0], product[0]}
        self.steps = [step for k, step in enumerate(self.steps) if k not in gone]


def _pads(attributes: dict[str, Any], rank: int = 2) -> tuple[list[int], list[int] | None]:
    """Symmetric padding for the call, and what must be padded before it."""
    pads = list(attributes.get("pads", [0] * 2 * rank))
    if pads[:rank] == pads[rank:]:
        return pads[:rank], None
    before = [p for k in reversed(range(rank)) for p in (pads[k], pads[rank + k])]
    return [0] * rank, before


def _conv(a: dict[str, Any], _: list[Any]) -> Callable[..., Any]:
    same, first = _pads(a)
    stride, group = a.get("strides", [1, 1]), a.get("group", 1)
    dilation = a.get("dilations", [1, 1])

    def conv(x: Any, w: Any, b: Any = None) -> Any:
        x = F.pad(x, first) if first else x
        return F.conv2d(x, w, b, stride, same, dilation, group)

    return conv


def _transposed(a: dict[str, Any], _: list[Any]) -> Callable[..., Any]:
    same, first = _pads(a)
    if first:
        raise NotImplementedError("ConvTranspose with uneven pads")
    stride = a.get("strides", [1, 1])
    return lambda x, w, b=None: F.conv_transpose2d(x, w, b, stride, same)


def _max_pool(a: dict[str, Any], _: list[Any]) -> Callable[..., Any]:
    same, first = _pads(a)
    kernel, stride = a["kernel_shape"], a.get("strides", [1, 1])
    up = bool(a.get("ceil_mode", 0))

    def pool(x: Any) -> Any:
        x = F.pad(x, first, value=float("-inf")) if first else x
        return F.max_pool2d(x, kernel, stride, same, ceil_mode=up)

    return pool


def _average_pool(a: dict[str, Any], _: list[Any]) -> Callable[..., Any]:
    same, first = _pads(a)
    kernel, stride = a["kernel_shape"], a.get("strides", [1, 1])
    counted = bool(a.get("count_include_pad", 0))
    up = bool(a.get("ceil_mode", 0))
    if first is None:
        return lambda x: F.avg_pool2d(x, kernel, stride, same, up, counted)

    def uneven(x: Any) -> Any:
        total = F.avg_pool2d(F.pad(x, first), kernel, stride)
        if counted:
            return total
        ones = F.avg_pool2d(F.pad(torch.ones_like(x[:1, :1]), first), kernel, stride)
        return total / ones

    return uneven


def _softmax(a: dict[str, Any], _: list[Any]) -> Callable[..., Any]:
    if a["opset"] >= 13:
        axis = a.get("axis", -1)
        return lambda x: torch.softmax(x, axis)
    first = a.get("axis", 1)
    return lambda x: torch.softmax(x.flatten(first), -1).reshape(x.shape)


def _reshape(a: dict[str, Any], consts: list[Any]) -> Callable[..., Any]:
    if consts[1] is None:
        raise NotImplementedError("Reshape to a computed shape")
    sizes = consts[1].tolist()

    def reshape(x: Any, _: Any) -> Any:
        return x.reshape([x.shape[k] if size == 0 else size for k, size in enumerate(sizes)])

    return reshape


def _gemm(a: dict[str, Any], _: list[Any]) -> Callable[..., Any]:
    if a.get("transA") or a.get("alpha", 1.0) != 1.0 or a.get("beta", 1.0) != 1.0:
        raise NotImplementedError("Gemm with alpha, beta or transA")
    if a.get("transB"):
        return lambda x, w, b=None: F.linear(x, w, b)
    return lambda x, w, b=None: torch.matmul(x, w) if b is None else torch.addmm(b, x, w)


def _gather(a: dict[str, Any], _: list[Any]) -> Callable[..., Any]:
    axis = a.get("axis", 0)

    def gather(x: Any, index: Any) -> Any:
        if axis == 0 and index.dim():
            return F.embedding(index, x)
        picked = torch.index_select(x, axis, index.reshape(-1))
        return picked.reshape(*x.shape[:axis], *index.shape, *x.shape[axis % x.dim() + 1 :])

    return gather


def _split(a: dict[str, Any], consts: list[Any]) -> Callable[..., Any]:
    axis = a.get("axis", 0)
    sizes = list(a["split"]) if "split" in a else consts[1].tolist()
    return lambda x, *_: torch.split(x, sizes, axis)


def _unsqueeze(a: dict[str, Any], consts: list[Any]) -> Callable[..., Any]:
    axes = list(a["axes"]) if "axes" in a else consts[1].tolist()

    def unsqueeze(x: Any, *_: Any) -> Any:
        for axis in sorted(axes):
            x = x.unsqueeze(axis)
        return x

    return unsqueeze


def _cast(a: dict[str, Any], _: list[Any]) -> Callable[..., Any]:
    kinds = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16}
    kind = kinds[a["to"]]
    return lambda x: x.to(kind)


def _clip(a: dict[str, Any], consts: list[Any]) -> Callable[..., Any]:
    bounds = [a.get("min"), a.get("max")]
    for k, value in enumerate(consts[1:3]):
        bounds[k] = None if value is None else value.item()
    return lambda x, *_: torch.clamp(x, *bounds)


def _plain(function: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    return lambda a, consts: function


MAKERS: dict[str, Callable[[dict[str, Any], list[Any]], Callable[..., Any]]] = {
    "Conv": _conv,
    "ConvTranspose": _transposed,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _plain(lambda x: F.adaptive_avg_pool2d(x, 1)),
    "Softmax": _softmax,
    "Reshape": _reshape,
    "Gemm": _gemm,
    "Gather": _gather,
    "Split": _split,
    "Unsqueeze": _unsqueeze,
    "Cast": _cast,
    "Clip": _clip,
    "BatchNormalization": lambda a, c: (
        lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, False, 0.0, a.get("epsilon", 1e-5))
    ),
    "LayerNormalization": lambda a, c: (
        lambda x, w, b: F.layer_norm(x, w.shape, w, b, a.get("epsilon", 1e-5))
    ),
    "Concat": lambda a, c: lambda *x: torch.cat(x, a["axis"]),
    "Transpose": lambda a, c: lambda x: x.permute(a["perm"]),
    "Flatten": lambda a, c: lambda x: x.flatten(a.get("axis", 1)),
    "Dropout": _plain(lambda x, *_: x),
    "Identity": _plain(lambda x: x),
    "Relu": _plain(F.relu),
    "Sigmoid": _plain(torch.sigmoid),
    "Tanh": _plain(torch.tanh),
    "Erf": _plain(torch.erf),
    "HardSwish": _plain(F.hardswish),
    "Add": _plain(torch.add),
    "Sub": _plain(torch.sub),
    "Mul": _plain(torch.mul),
    "Div": _plain(torch.div),
    "Pow": _plain(torch.pow),
    "MatMul": _plain(torch.matmul),
    "Where": _plain(torch.where),
    "Sum": _plain(lambda *x: x[0] + x[1] if len(x) == 2 else sum(x)),
}
