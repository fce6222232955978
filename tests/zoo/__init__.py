"""Models for tests and benchmarks: made on the spot, deterministic, no downloads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from tests.zoo import opaque as zoo_opaque
from tests.zoo import quantized as zoo_quantized
from tests.zoo import small as zoo_small
from tests.zoo import text as zoo_text
from tests.zoo import vision as zoo_vision

LIGHT = (
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
)
# Variance times fan-in of a weight, less where residual sums would let activations grow.
_GAINS = {
    "resnet50": 0.7,
    "shufflenet": 0.4,
    "inception_v1": 1.0,
}
_LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def light(name: str, seed: int = 0) -> ModelProto:
    """One of onnx's ``light_*`` models with its ConstantOfShape weights filled in.

    ``name`` without ``light_`` and ``.onnx``, e.g. ``resnet50``. Weights are He-scaled and
    damped so that activations stay tame and the softmax is not saturated; vectors are near 1.
    """
    model = onnx.load(str(_LIGHT / f"light_{name}.onnx"))
    graph = model.graph
    random = np.random.default_rng(seed)
    gain = _GAINS.get(name, 2.0)
    initializers = {i.name: i for i in graph.initializer}
    filled = []
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in initializers:
            kept.append(node)
            continue
        shape = tuple(int(d) for d in numpy_helper.to_array(initializers[node.input[0]]))
        values = (random.random(shape, dtype=np.float32) * 2 - 1) * np.float32(3**0.5)
        if len(shape) > 1:
            values *= np.float32((gain / np.prod(shape[1:])) ** 0.5)
        else:
            values = 1 + np.float32(0.1) * values
        filled.append(numpy_helper.from_array(values, node.output[0]))
    used = {value for node in kept for value in node.input}
    old = [i for i in graph.initializer if i.name in used]
    names = {i.name for i in [*old, *filled]}
    inputs = [i for i in graph.input if i.name in used and i.name not in names]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(kept)
    graph.initializer.extend([*old, *filled])
    graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 8)
    return model


def mnist() -> ModelProto:
    """The MNIST network that the product ships."""
    return onnx.load(str(Path(__file__).parents[2] / "resources/models/mnist.onnx"))


ZOO: dict[str, Callable[..., ModelProto]] = {
    "mnist": mnist,
    **{f"light_{name}": partial(light, name) for name in LIGHT},
    "mobilenet_v2": zoo_vision.mobilenet_v2,
    "unet": zoo_vision.unet,
    "float16": zoo_vision.float16_net,
    "bert": zoo_text.bert,
    "gpt2": zoo_text.gpt2,
    "exported": zoo_text.exported,
    "qdq": zoo_quantized.qdq,
    "float_resnet_block": zoo_quantized.float_resnet_block,
    "qdq_resnet_block": zoo_quantized.qdq_resnet_block,
    "split_concat": zoo_small.split_concat,
    "several": zoo_small.several,
    "dynamic_batch": zoo_small.dynamic_batch,
    "outputs": zoo_small.outputs,
    "tiny": zoo_small.tiny,
    "leftovers": zoo_small.leftovers,
    "tagger": zoo_opaque.tagger,
    "control_flow": zoo_opaque.control_flow,
    "contrib": zoo_opaque.contrib,
    "detector": zoo_opaque.detector,
}
"""Every model by name; arguments where its builder takes some."""

OPAQUE = ("tagger", "control_flow", "contrib", "detector")
"""Those with operators that Relax lacks."""

SMALL = tuple(n for n in ZOO if not n.startswith("light_") and n not in ("mobilenet_v2", *OPAQUE))
"""Those that import in well under a second."""

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "dynamic_batch": {"image": (2, 3, 8, 8)},
    "exported": {"input_ids": (2, 12)},
}
"""What to pass as ``--shape`` to those that need it."""


def build(name: str, **arguments: int) -> ModelProto:
    """A model of the zoo."""
    return ZOO[name](**arguments)
