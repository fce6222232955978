"""Write mnist.onnx: the MNIST CNN of TVM RFC 0062 (Collage), with random weights.

    python resources/models/make_mnist.py [OUT.onnx]

Input ``Input3`` float32[1,1,28,28], output ``Plus214_Output_0`` float32[1,10]; operators and
names follow the ONNX model zoo's mnist-8: conv 5x5 (8 channels), add, relu, max pool 2x2,
conv 5x5 (16), add, relu, max pool 3x3, reshape, dense, add. The weights come from a fixed
seed: the same bytes every time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper
from onnx.onnx_ml_pb2 import ModelProto


def mnist() -> ModelProto:
    """Return the model; see the text of the module."""
    random = np.random.default_rng(62)

    def weight(name: str, *shape: int, fan_in: int) -> None:
        values = random.standard_normal(shape, dtype=np.float32) * np.float32((2 / fan_in) ** 0.5)
        initializers.append(numpy_helper.from_array(values, name))

    initializers: list[TensorProto] = []
    weight("Parameter5", 8, 1, 5, 5, fan_in=25)
    weight("Parameter6", 8, 1, 1, fan_in=200)
    weight("Parameter87", 16, 8, 5, 5, fan_in=200)
    weight("Parameter88", 16, 1, 1, fan_in=200)
    weight("Parameter193_reshape1", 256, 10, fan_in=512)
    weight("Parameter194", 1, 10, fan_in=200)
    shape = numpy_helper.from_array(np.array([1, 256], dtype=np.int64), "Pooling160_shape")
    initializers.append(shape)

    def conv(name: str, data: str, kernel: str) -> None:
        nodes.append(
            helper.make_node(
                "Conv",
                [data, kernel],
                [f"{name}_Output_0"],
                name=name,
                kernel_shape=[5, 5],
                pads=[2, 2, 2, 2],
                strides=[1, 1],
                dilations=[1, 1],
                group=1,
            )
        )

    def pool(name: str, data: str, size: int) -> None:
        nodes.append(
            helper.make_node(
                "MaxPool",
                [data],
                [f"{name}_Output_0"],
                name=name,
                kernel_shape=[size, size],
                strides=[size, size],
                pads=[0, 0, 0, 0],
            )
        )

    def plain(op: str, name: str, *inputs: str) -> None:
        nodes.append(helper.make_node(op, list(inputs), [f"{name}_Output_0"], name=name))

    nodes: list = []
    conv("Convolution28", "Input3", "Parameter5")
    plain("Add", "Plus30", "Convolution28_Output_0", "Parameter6")
    plain("Relu", "ReLU32", "Plus30_Output_0")
    pool("Pooling66", "ReLU32_Output_0", 2)
    conv("Convolution110", "Pooling66_Output_0", "Parameter87")
    plain("Add", "Plus112", "Convolution110_Output_0", "Parameter88")
    plain("Relu", "ReLU114", "Plus112_Output_0")
    pool("Pooling160", "ReLU114_Output_0", 3)
    plain("Reshape", "Times212_reshape0", "Pooling160_Output_0", "Pooling160_shape")
    plain("MatMul", "Times212", "Times212_reshape0_Output_0", "Parameter193_reshape1")
    plain("Add", "Plus214", "Times212_Output_0", "Parameter194")

    graph = helper.make_graph(
        nodes,
        "mnist",
        [helper.make_tensor_value_info("Input3", TensorProto.FLOAT, [1, 1, 28, 28])],
        [helper.make_tensor_value_info("Plus214_Output_0", TensorProto.FLOAT, [1, 10])],
        initializers,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="collage"
    )
    checker.check_model(model)
    return model


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("mnist.onnx")
    out.write_bytes(mnist().SerializeToString(deterministic=True))
