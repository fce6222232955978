"""Transformers of the zoo."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, numpy_helper

from tests.zoo.net import Net


def _attention(net: Net, x: str, length: int, hidden: int, heads: int, mask: str | None) -> str:
    width = hidden // heads

    def split(y: str, perm: list[int]) -> str:
        return net.op("Transpose", net.reshape(y, -1, length, heads, width), perm=perm)

    q = split(net.dense(x, hidden, hidden), [0, 2, 1, 3])
    k = split(net.dense(x, hidden, hidden), [0, 2, 3, 1])
    v = split(net.dense(x, hidden, hidden), [0, 2, 1, 3])
    scores = net.op("Div", net.op("MatMul", q, k), net.const(width**0.5, np.float32))
    if mask is not None:
        scores = net.op("Add", scores, mask)
    y = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    y = net.reshape(net.op("Transpose", y, perm=[0, 2, 1, 3]), -1, length, hidden)
    return net.dense(y, hidden, hidden)


def _gelu(net: Net, x: str) -> str:
    """As exporters write it: x·0.5·(1 + erf(x/√2))."""
    half, one = net.const(0.5, np.float32), net.const(1.0, np.float32)
    y = net.op("Erf", net.op("Div", x, net.const(2**0.5, np.float32)))
    return net.op("Mul", net.op("Mul", x, net.op("Add", y, one)), half)


def _gelu_tanh(net: Net, x: str) -> str:
    """GPT-2's: 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))."""
    cube = net.op("Pow", x, net.const(3.0, np.float32))
    inner = net.op("Add", x, net.op("Mul", cube, net.const(0.044715, np.float32)))
    y = net.op("Tanh", net.op("Mul", inner, net.const((2 / np.pi) ** 0.5, np.float32)))
    y = net.op("Add", y, net.const(1.0, np.float32))
    return net.op("Mul", net.op("Mul", x, net.const(0.5, np.float32)), y)


def encoder_layer(
    net: Net, x: str, length: int, hidden: int, heads: int, mask: str | None = None
) -> str:
    """Self-attention and feed-forward with residuals, in BERT's order."""
    x = net.layer_norm(net.op("Add", x, _attention(net, x, length, hidden, heads, mask)), hidden)
    y = net.dense(_gelu(net, net.dense(x, hidden, 4 * hidden)), 4 * hidden, hidden)
    return net.layer_norm(net.op("Add", x, y), hidden)


def bert(
    layers: int = 2, length: int = 32, hidden: int = 64, heads: int = 4, vocabulary: int = 1000
) -> ModelProto:
    """BERT-like encoder (Devlin 2018): embeddings, mask, post-norm layers, pooled output."""
    net = Net("bert", seed=10)
    ids = net.input("input_ids", [1, length], "int64")
    kinds = net.input("token_type_ids", [1, length], "int64")
    attend = net.input("attention_mask", [1, length], "int64")
    words = net.weight(vocabulary, hidden, fan_in=1, gain=0.3)
    x = net.op("Gather", words, ids, axis=0, name="word_embeddings")
    x = net.op("Add", x, net.op("Gather", net.weight(2, hidden, fan_in=1, gain=0.3), kinds, axis=0))
    x = net.op("Add", x, net.weight(1, length, hidden, fan_in=1, gain=0.3))
    x = net.layer_norm(x, hidden)
    mask = net.op("Cast", net.op("Unsqueeze", attend, net.const([1, 2], np.int64)), to=1)
    mask = net.op("Sub", net.const(1.0, np.float32), mask)
    mask = net.op("Mul", mask, net.const(-10000.0, np.float32))
    for _ in range(layers):
        x = encoder_layer(net, x, length, hidden, heads, mask)
    net.output(x)
    first = net.op("Gather", x, net.const(0, np.int64), axis=1)
    net.output(net.op("Tanh", net.dense(first, hidden, hidden)))
    return net.model()


def gpt2(
    layers: int = 2,
    length: int = 16,
    hidden: int = 64,
    heads: int = 4,
    vocabulary: int = 500,
) -> ModelProto:
    """GPT-2-like decoder (Radford 2019): fused qkv and Split, causal mask, tied head."""
    net = Net("gpt2", seed=12)
    width = hidden // heads
    ids = net.input("input_ids", [1, length], "int64")
    table = net.weight(vocabulary, hidden, fan_in=1, gain=0.1)
    x = net.op("Gather", table, ids, axis=0)
    positions = net.weight(length, hidden, fan_in=1, gain=0.1)
    x = net.op("Add", x, positions)
    causal = net.const(np.tril(np.ones((1, 1, length, length), bool)))
    low = net.const(np.float32(-1e4))
    for _ in range(layers):
        y = net.dense(net.layer_norm(x, hidden), hidden, 3 * hidden)
        parts = net.op("Split", y, net.const([hidden] * 3, np.int64), outputs=3, axis=2)

        def split(y: str, perm: list[int]) -> str:
            return net.op("Transpose", net.reshape(y, 1, length, heads, width), perm=perm)

        q, k = split(parts[0], [0, 2, 1, 3]), split(parts[1], [0, 2, 3, 1])
        scores = net.op("Mul", net.op("MatMul", q, k), net.const(np.float32(width**-0.5)))
        scores = net.op("Where", causal, scores, low)
        y = net.op("MatMul", net.op("Softmax", scores, axis=-1), split(parts[2], [0, 2, 1, 3]))
        y = net.reshape(net.op("Transpose", y, perm=[0, 2, 1, 3]), 1, length, hidden)
        x = net.op("Add", x, net.dense(y, hidden, hidden))
        y = _gelu_tanh(net, net.dense(net.layer_norm(x, hidden), hidden, 4 * hidden))
        x = net.op("Add", x, net.dense(y, 4 * hidden, hidden))
    x = net.layer_norm(x, hidden)
    net.output(net.op("MatMul", x, net.op("Transpose", table, perm=[1, 0])))
    return net.model()


def exported(hidden: int = 32, heads: int = 4, vocabulary: int = 100) -> ModelProto:
    """A decoder layer as tracing exporters write it: every size computed from Shape.

    Sizes "batch" and "length" are open; with them given, all of that must fold away.
    """
    net = Net("exported", seed=13)
    width = hidden // heads
    ids = net.input("input_ids", ["batch", "length"], "int64")
    zero, one = net.const(np.int64(0)), net.const(np.int64(1))
    first = net.const([0], np.int64)

    def size(value: str, axis: str) -> str:
        return net.op("Gather", net.op("Shape", value), axis, axis=0)

    def shape(*parts: str | int) -> str:
        sizes = [
            net.const([p], np.int64) if isinstance(p, int) else net.op("Unsqueeze", p, first)
            for p in parts
        ]
        return net.op("Concat", *sizes, axis=0)

    batch, length = size(ids, zero), size(ids, one)
    positions = net.op("Range", zero, length, one)
    positions = net.op("Expand", net.op("Unsqueeze", positions, first), shape(batch, length))
    x = net.op("Gather", net.weight(vocabulary, hidden, fan_in=1, gain=0.3), ids, axis=0)
    places = net.weight(64, hidden, fan_in=1, gain=0.3)
    x = net.op("Add", x, net.op("Gather", places, positions, axis=0))
    value = numpy_helper.from_array(np.array([-1e4], np.float32))
    mask = net.op("Trilu", net.op("ConstantOfShape", shape(length, length), value=value), one)
    y = net.layer_norm(x, hidden)

    def split(y: str, *perm: int) -> str:
        y = net.op("Reshape", net.dense(y, hidden, hidden), shape(batch, length, heads, width))
        return net.op("Transpose", y, perm=list(perm))

    q, k, v = split(y, 0, 2, 1, 3), split(y, 0, 2, 3, 1), split(y, 0, 2, 1, 3)
    depth = net.op("Cast", size(q, net.const(np.int64(3))), to=1)
    scores = net.op("Div", net.op("MatMul", q, k), net.op("Sqrt", depth))
    mask = net.op(
        "Slice", mask, first, net.op("Unsqueeze", length, first), first, net.const([1], np.int64)
    )
    attended = net.op("MatMul", net.op("Softmax", net.op("Add", scores, mask), axis=-1), v)
    attended = net.op("Transpose", attended, perm=[0, 2, 1, 3])
    y = net.op("Reshape", attended, shape(batch, length, hidden))
    x = net.op("Add", x, net.dense(y, hidden, hidden))
    last = net.op(
        "Slice",
        x,
        net.const([-1], np.int64),
        net.const([np.iinfo(np.int64).max], np.int64),
        net.const([1], np.int64),
    )
    net.output(net.dense(last, hidden, vocabulary), shape=["batch", 1, vocabulary])
    return net.model()
