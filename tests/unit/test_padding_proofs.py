"""Batches that may be padded: models of which it is proved, and those that mix the rows of one.

Each model that is accepted is run on rows whose padding is large and not a number; what is kept
must be what the rows alone give.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage_engine.model.padding import batch_dimension
from tests.support.model_runs import run_onnx
from tests.zoo.net import Net

Build = Callable[[Net, str], str]


def ints(net: Net, *values: int) -> str:
    return net.const(np.array(values, np.int64))


def classifier(net: Net, x: str) -> str:
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Add", x, net.op("Pad", x, ints(net, 0, 0, 0, 0, 0, 0, 0, 0)))
    x = net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", net.conv(x, 4, 4))))
    return net.op("Softmax", net.op("Gemm", x, net.weight(5, 4), net.vector(5), transB=1), axis=1)


def heads(net: Net, x: str) -> str:
    """Attention as torch exports it: the sizes come from Shape."""
    parts = net.op("Gather", net.op("Shape", x), ints(net, 0, 1))
    shape = net.op("Concat", parts, ints(net, 2, 4), axis=0)
    x = net.op("MatMul", net.op("ReduceMean", x, axes=[3], keepdims=0), net.weight(6, 8))
    q = net.op("Transpose", net.op("Reshape", x, shape), perm=[0, 2, 1, 3])
    scores = net.op("MatMul", q, net.op("Transpose", q, perm=[0, 1, 3, 2]))
    mixed = net.op("Transpose", net.op("MatMul", net.op("Softmax", scores), q), perm=[0, 2, 1, 3])
    return net.op("Reshape", mixed, net.op("Concat", parts, ints(net, 8), axis=0))


PROVED: list[Build] = [
    classifier,
    heads,
    lambda n, x: n.op("Concat", x, n.op("Neg", x), axis=2),
    lambda n, x: n.op("Cast", n.op("ArgMax", x, axis=1), to=1),
    lambda n, x: n.op("Gather", x, ints(n, -1, 0), axis=1),
    lambda n, x: n.op("Squeeze", n.op("Unsqueeze", x, ints(n, 2)), ints(n, 2)),
]
REFUSED: list[Build] = [
    lambda n, x: n.op("Softmax", x, axis=0),
    lambda n, x: n.op("Sub", x, n.op("ReduceMean", x, axes=[0], keepdims=1)),
    lambda n, x: n.op("Reshape", x, ints(n, -1, 2)),
    lambda n, x: n.op("Transpose", x, perm=[1, 0, 2, 3]),
    lambda n, x: n.op("Concat", x, x, axis=0),
    lambda n, x: n.op("CumSum", x, n.const(np.int64(0))),
    lambda n, x: n.op("Gather", x, n.op("Cast", n.op("Clip", x), to=7)),
    lambda n, x: n.op("Div", x, n.op("Cast", n.op("Size", x), to=1)),
    lambda n, x: n.op("Mul", x, n.op("Cast", n.op("Gather", n.op("Shape", x), ints(n, 0)), to=1)),
    lambda n, x: n.op("Div", *[n.op("Cast", x, to=7)] * 2),
    lambda n, x: n.op("Slice", x, ints(n, -1), ints(n, -9), ints(n, 0), ints(n, -1)),
]


def written(folder: Path, build: Build) -> Path:
    net = Net("m", opset=17, seed=3)
    net.output(build(net, net.input("x", ["batch", 4, 6, 4])))
    path = folder / "m.onnx"
    onnx.save(net.model(check=False), path)
    return path


@pytest.mark.parametrize("case", range(len(PROVED)))
def test_what_is_proved_holds_whatever_stands_in_the_padding(tmp_path: Path, case: int) -> None:
    path = written(tmp_path, PROVED[case])
    assert batch_dimension((path, ["other", "batch"])) == "batch"
    model = onnx.load(path)
    rows = np.random.default_rng(0).standard_normal((3, 4, 6, 4)).astype(np.float32)
    (alone,) = run_onnx(model, {"x": rows})
    for filling in (1e6, np.nan):
        padding = np.full((2, *rows.shape[1:]), filling, np.float32)
        (found,) = run_onnx(model, {"x": np.concatenate([rows, padding])})
        np.testing.assert_allclose(found[:3], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_mixes_rows_or_has_no_rule_is_not_proved(tmp_path: Path, case: int) -> None:
    assert batch_dimension((written(tmp_path, REFUSED[case]), ["batch"])) is None
