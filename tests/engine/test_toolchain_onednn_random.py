"""Random graphs on oneDNN: sharing, in-place sums, views and layouts in every combination."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from collage_engine.toolchains.onednn.toolchain import OneDnnToolchain
from tests.support.onednn_checks import check
from tests.support.toolchain_cases import Net

SIZE = 6


def random_model(seed: int, length: int = 14) -> ModelProto:
    """Every operator keeps the shape, so that any value can meet any other."""
    net = Net(seed=seed)
    random = net.random
    batch, channels = int(random.choice([1, 1, 2])), int(random.choice([4, 8, 16, 6]))
    shape = (batch, channels, SIZE, SIZE)
    values = [net.input(*shape), net.input(*shape)]

    def pick() -> str:
        # Mostly recent values, so that chains and residuals form.
        back = min(len(values), 1 + int(random.geometric(0.45)))
        return values[-back]

    def choose(*options: Any) -> Any:
        return options[int(random.integers(len(options)))]

    def conv(x: str) -> Any:
        kernel, groups = choose(1, 3), choose(1, 1, channels)
        w = net.randn(channels, channels // groups, kernel, kernel, scale=0.2)
        bias = [net.randn(channels)] if random.random() < 0.5 else []
        return net.add("Conv", x, w, *bias, group=groups, pads=[kernel // 2] * 4)

    def moved(x: str) -> Any:
        flat = net.add("Reshape", x, net.const(np.array([batch * channels, SIZE * SIZE])))
        return net.add(
            "Reshape", net.add("Transpose", flat, perm=[1, 0]), net.const(np.array(shape))
        )

    def gate(x: str) -> Any:
        w = net.randn(channels, channels, 1, 1, scale=0.4)
        squeezed = net.add("Conv", net.add("GlobalAveragePool", x), w)
        return net.add("Mul", x, net.add("Sigmoid", squeezed))

    def gelu(x: str) -> Any:
        gate = net.add("Add", net.add("Erf", net.add("Div", x, net.scalar(2**0.5))), net.scalar(1))
        return net.add("Mul", net.add("Mul", x, gate), net.scalar(0.5))

    broadcast = [(channels, 1, 1), (SIZE,), (1, SIZE, 1), (1, 1, SIZE, SIZE), shape]
    makers: list[Callable[[str], Any]] = [
        *(conv, conv, moved, gate, gelu),
        *[lambda x: net.add(choose("Add", "Add", "Add", "Sub", "Mul", "Max"), x, pick())] * 3,
        lambda x: net.add(choose("Relu", "Sigmoid", "Tanh", "Abs", "Neg"), x),
        lambda x: net.add(choose("Add", "Mul", "Sub"), x, net.scalar(random.uniform(0.5, 1.5))),
        lambda x: net.add(choose("Mul", "Sub"), net.scalar(random.uniform(0.5, 1.5)), x),
        lambda x: net.add(choose("Add", "Mul"), x, net.randn(*choose(*broadcast))),
        lambda x: net.add(choose("MaxPool", "AveragePool"), x, kernel_shape=[3, 3], pads=[1] * 4),
        lambda x: net.add("MatMul", x, net.randn(SIZE, SIZE, scale=0.4)),
        lambda x: net.add("MatMul", net.add("Transpose", x, perm=[0, 1, 3, 2]), pick()),
        lambda x: net.add("Concat", *reversed(net.add("Split", x, outputs=2, axis=1)), axis=1),
        lambda x: net.add("Softmax", x, axis=choose(1, 3)),
        lambda x: net.add("Mul", x, net.add("Sigmoid", x)),
        lambda x: net.add("LayerNormalization", x, net.randn(SIZE), net.randn(SIZE)),
        lambda x: net.add("Sub", x, net.add("ReduceMean", x, axes=[choose(1, 2, 3)])),
        lambda x: net.add("InstanceNormalization", x, net.randn(channels), net.randn(channels)),
    ]
    for _ in range(length):
        maker = choose(*makers)
        values.append(maker(pick()))
    extra = [values[int(random.integers(2, len(values)))] for _ in range(int(random.integers(3)))]
    return net.model(*dict.fromkeys([values[-1], *extra]))


@pytest.fixture(scope="module")
def toolchain() -> OneDnnToolchain:
    return OneDnnToolchain()


@pytest.mark.parametrize("seed", range(25))
def test_random_graph(toolchain: OneDnnToolchain, seed: int) -> None:
    # Norms of values that hardly vary amplify rounding.
    check(toolchain, random_model(seed), tolerance=1e-4)
