"""Random graphs on oneDNN: sharing, in-place sums, views and layouts in every combination."""

from __future__ import annotations

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

    def unary(x: str) -> str:
        op = str(random.choice(["Relu", "Sigmoid", "Tanh", "Abs", "Neg"]))
        return str(net.add(op, x))

    def scalar(x: str) -> str:
        op = str(random.choice(["Add", "Mul", "Sub"]))
        pair = [x, net.scalar(float(random.uniform(0.5, 1.5)))]
        random.shuffle(pair)
        return str(net.add(op, *pair))

    def binary(x: str) -> str:
        op = str(random.choice(["Add", "Add", "Add", "Sub", "Mul", "Max"]))
        return str(net.add(op, x, pick()))

    def broadcast(x: str) -> str:
        shapes = [(channels, 1, 1), (SIZE,), (1, SIZE, 1), (1, 1, SIZE, SIZE), shape]
        other = net.randn(*shapes[int(random.integers(len(shapes)))])
        return str(net.add(str(random.choice(["Add", "Mul"])), x, other))

    def conv(x: str) -> str:
        kernel = int(random.choice([1, 3]))
        groups = int(random.choice([1, 1, channels]))
        w = net.randn(channels, channels // groups, kernel, kernel, scale=0.2)
        bias = [net.randn(channels)] if random.random() < 0.5 else []
        return str(net.add("Conv", x, w, *bias, group=groups, pads=[kernel // 2] * 4))

    def pool(x: str) -> str:
        op = str(random.choice(["MaxPool", "AveragePool"]))
        return str(net.add(op, x, kernel_shape=[3, 3], pads=[1] * 4))

    def product(x: str) -> str:
        return str(net.add("MatMul", x, net.randn(SIZE, SIZE, scale=0.4)))

    def transposed(x: str) -> str:
        return str(net.add("MatMul", net.add("Transpose", x, perm=[0, 1, 3, 2]), pick()))

    def halves(x: str) -> str:
        left, right = net.add("Split", x, outputs=2, axis=1)
        return str(net.add("Concat", right, left, axis=1))

    def moved(x: str) -> str:
        flat = net.add("Reshape", x, net.const(np.array([batch * channels, SIZE * SIZE])))
        turned = net.add("Transpose", flat, perm=[1, 0])
        return str(net.add("Reshape", turned, net.const(np.array(shape))))

    def normal(x: str) -> str:
        return str(net.add("Softmax", x, axis=int(random.choice([1, 3]))))

    def silu(x: str) -> str:
        return str(net.add("Mul", x, net.add("Sigmoid", x)))

    def layer_norm(x: str) -> str:
        return str(net.add("LayerNormalization", x, net.randn(SIZE), net.randn(SIZE)))

    def gate(x: str) -> str:
        squeezed = net.add("GlobalAveragePool", x)
        w = net.randn(channels, channels, 1, 1, scale=0.4)
        return str(net.add("Mul", x, net.add("Sigmoid", net.add("Conv", squeezed, w))))

    def centred(x: str) -> str:
        axis = int(random.integers(1, 4))
        return str(net.add("Sub", x, net.add("ReduceMean", x, axes=[axis])))

    def instance_norm(x: str) -> str:
        return str(net.add("InstanceNormalization", x, net.randn(channels), net.randn(channels)))

    def gelu(x: str) -> str:
        gate = net.add("Add", net.add("Erf", net.add("Div", x, net.scalar(2**0.5))), net.scalar(1))
        return str(net.add("Mul", net.add("Mul", x, gate), net.scalar(0.5)))

    makers = [
        unary,
        scalar,
        binary,
        binary,
        binary,
        broadcast,
        conv,
        conv,
        pool,
        product,
        transposed,
        halves,
        moved,
        normal,
        silu,
        layer_norm,
        gate,
        centred,
        instance_norm,
        gelu,
    ]
    for _ in range(length):
        maker = makers[int(random.integers(len(makers)))]
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
