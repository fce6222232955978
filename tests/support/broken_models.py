"""Makes model files that are broken in one way each, with what their sentence must say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class Broken:
    """A broken model: how it is made, and a pattern that a sentence of our own contains."""

    name: str
    data: Callable[[], bytes]
    says: str = ""


def model(
    nodes: Sequence[Any],
    inputs: dict[str, Sequence[int]],
    constants: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    outputs: Sequence[str] = ("y",),
    functions: Sequence[Any] = (),
) -> ModelProto:
    """Returns a small model of float inputs; nothing is checked."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()],
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    made = helper.make_model(graph, opset_imports=domains, functions=list(functions))
    made.ir_version = 8
    return made


def _one(
    kind: str,
    shape: Sequence[int],
    constants: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    outputs: Sequence[str] = ("y",),
    **attributes: Any,
) -> ModelProto:
    """Returns one node 'culprit' of the input x and of constants, in order."""
    constants = constants or {}
    node = helper.make_node(kind, ["x", *constants], list(outputs), name="culprit", **attributes)
    return model([node], {"x": shape}, constants, opset=opset, outputs=outputs)


def _integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def laughs(levels: int) -> ModelProto:
    """Returns functions that each call the one before twice: 2**levels nodes in a few kilobytes."""
    functions = []
    for level in range(levels):
        inner = ("Relu", "") if level == 0 else (f"f{level - 1}", "local")
        nodes = [
            helper.make_node(inner[0], ["a"], ["b"], domain=inner[1]),
            helper.make_node(inner[0], ["b"], ["c"], domain=inner[1]),
        ]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        functions.append(
            helper.make_function("local", f"f{level}", ["a"], ["c"], nodes, opset_imports=opsets)
        )
    call = helper.make_node(f"f{levels - 1}", ["x"], ["y"], domain="local", name="culprit")
    return model([call], {"x": [2, 3]}, functions=functions)


def _recursive() -> ModelProto:
    again = helper.make_node("f", ["a"], ["c"], domain="local")
    opsets = [helper.make_opsetid("local", 1)]
    function = helper.make_function("local", "f", ["a"], ["c"], [again], opset_imports=opsets)
    call = helper.make_node("f", ["x"], ["y"], domain="local", name="culprit")
    return model([call], {"x": [2, 3]}, functions=[function])


def _call_with_more(inputs: list[str], outputs: list[str]) -> ModelProto:
    """Returns a call of a function with more inputs or outputs than the function has."""
    body = [helper.make_node("Relu", ["a"], ["c"])]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("local", "f", ["a"], ["c"], body, opset_imports=opsets)
    call = helper.make_node("f", inputs, outputs, domain="local", name="culprit")
    return model([call], {"x": [2, 3]}, functions=[function])


def _no_body() -> ModelProto:
    function = helper.make_function("local", "f", ["a"], ["c"], [], opset_imports=[])
    call = helper.make_node("f", ["x"], ["y"], domain="local", name="culprit")
    return model([call], {"x": [2, 3]}, functions=[function])


def _two_inputs_of_one_name() -> ModelProto:
    made = _one("Relu", [2, 3])
    made.graph.input.add().CopyFrom(made.graph.input[0])
    return made


def _element_type(kind: int) -> ModelProto:
    made = _one("Relu", [2, 3])
    made.graph.input[0].type.tensor_type.elem_type = kind
    return made


def _bad_text() -> bytes:
    return _one("Relu", [2, 3]).SerializeToString().replace(b"culprit", b"culp\xff\xfet")


def _external(**place: str) -> ModelProto:
    made = _one("Add", [2, 3], {"w": np.ones((2, 3), np.float32)})
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "self.onnx", **place}.items():
        tensor.external_data.add(key=key, value=value)
    return made


def _short_tensor() -> ModelProto:
    made = _one("Add", [2, 3], {"w_57": np.ones((2, 3), np.float32)})
    made.graph.initializer[0].raw_data = b"1234"
    return made


def _conditional(attributes: Sequence[str], condition: bool = True) -> ModelProto:
    out = helper.make_tensor_value_info("b", TensorProto.FLOAT, [2, 3])
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["b"])], "branch", [], [out])
    node = helper.make_node("If", ["k"] if condition else [], ["y"], name="culprit")
    node.attribute.extend(helper.make_attribute(name, branch) for name in attributes)
    return model([node], {"x": [2, 3]}, {"k": np.array(True)})


def _named(length: int) -> ModelProto:
    node = helper.make_node("Relu", ["nowhere"], ["y"], name="n" * length)
    return model([node], {"x": [2, 3]})


def _value_named(length: int) -> ModelProto:
    node = helper.make_node("Gather", ["x" * length, "i"], ["y"], name="a b " * (length // 4))
    return model([node], {"x" * length: [2, 3]}, {"i": _integers(99)})


def _escapes() -> ModelProto:
    node = helper.make_node("Relu", ["nowhere"], ["y"], name="\x1b]0;PWNED\x07culprit\nsecond")
    return model([node], {"x": [2, 3]})


def _lstm(**changed: Any) -> ModelProto:
    weights = {"W": np.ones((1, 8, 3)), "R": np.ones((1, 8, 2))} | changed.pop("weights", {})
    arrays = {name: np.asarray(w, np.float32) for name, w in weights.items()}
    return _one("LSTM", [4, 1, 3], arrays, **{"hidden_size": 2, **changed})


def _attribute_twice() -> ModelProto:
    made = _one("Softmax", [2, 3], axis=1)
    made.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    return made


def _wrong_attribute_type() -> ModelProto:
    made = _one("Softmax", [2, 3])
    made.graph.node[0].attribute.add(name="axis", type=AttributeProto.STRING, s=b"one")
    return made


_W = {"w": np.ones((2, 3, 3, 3), np.float32)}
_IMAGE = [1, 3, 8, 8]

_ONES = np.ones(1, np.float32)
_WIDE = {"w": np.ones((4, 5), np.float32)}


def _sentences() -> dict[str, tuple[ModelProto | Callable[[], bytes], str]]:
    """Returns models that were taken for a defect of the program, with what must be said.

    Keys are names of the cases; values are a model, or a function that returns a file's bytes, and
    a pattern of the sentence.
    """
    two = ("then_branch", "else_branch")
    huge = {"shape": _integers(100_000, 1_000_000)}
    return {
        "two inputs of one name": (_two_inputs_of_one_name(), "'x'"),
        "unknown attribute": (_one("Relu", [2, 3], colour=3), "colour"),
        "attribute twice": (_attribute_twice(), "'culprit'|axis"),
        "attribute of another type": (_wrong_attribute_type(), "axis"),
        "not UTF-8": (_bad_text, "not UTF-8"),
        "recursive functions": (_recursive(), "must not be recursive"),
        "call with more inputs": (
            _call_with_more(["x", "x"], ["y"]),
            "import failed",
        ),
        "call with more outputs": (
            _call_with_more(["x"], ["y", "z"]),
            "import failed",
        ),
        "function without a body": (_no_body(), "cannot be imported"),
        "If without else": (_conditional(two[:1]), "else_branch"),
        "offset that is no number": (_external(offset="abc"), "'w' keeps its data in 'self.onnx'"),
        "negative offset": (_external(offset="-9"), "'w' keeps its data in 'self.onnx'"),
        "length that does not fit": (_external(length="5"), "'w' is broken|w"),
        "complex input": (_element_type(TensorProto.COMPLEX64), "complex numbers"),
        "unknown element type": (_element_type(99), "unknown element type 99"),
        "input of 2**62 elements": (_one("Relu", [2**31, 2**31]), "does not fit.*memory"),
        "value of 400 GB": (_one("Expand", [1], huge), "does not fit.*memory"),
        "tensor of other bytes": (_short_tensor(), "w_57"),
        "name of 64 KB": (_named(65_536), "nowhere"),
        "escape sequence in a name": (_escapes(), r"\\x1b\]0;PWNED\\x07culprit"),
        "input without elements": (
            _one("Relu", [0, 4]),
            r"the size \[0, 4\].*--shape x=1,4",
        ),
        "newer operator set": (_one("Relu", [2, 3], opset=999), "operator set 999"),
        "functions that double": (laughs(34), "more than|17179869184"),
    }


def _by_the_standard() -> dict[str, ModelProto]:
    """Returns models that ONNX's checker, its shape inference or the import refuses."""
    parts = _one("Split", [8], {"s": _integers(3, 99)}, opset=13, outputs=("y", "z"))
    statistics = {name: np.ones(2, np.float32) for name in "sbmv"}
    cut = {name: _integers(value) for name, value in zip("abcd", (0, 8, 0, 0), strict=True)}
    return {
        "no such operator": _one("Rleu", [2, 3]),
        "too many inputs": _one("Relu", [2, 3], {"w": _ONES}),
        "kernel of zero": _one("MaxPool", _IMAGE, kernel_shape=[0, 1]),
        "negative pads": _one("Conv", _IMAGE, _W, pads=[-9, 0, 0, 0]),
        "Gather beyond the end": _one("Gather", [8], {"i": _integers(8)}),
        "Split of 8 into 3 and 99": parts,
        "Slice by 0": _one("Slice", [8], cut),
        "Gemm": _one("Gemm", [2, 3], _WIDE),
        "BatchNormalization": _one("BatchNormalization", [1, 3, 4], statistics),
    }


def _when_run() -> dict[str, ModelProto]:
    """Returns models that nothing finds wrong before they are run."""
    pair = _integers(0, 7).reshape(1, 2)
    scattered = {"i": _integers(4).reshape(1, 1), "u": _ONES}
    elements = {"i": _integers(5, 0).reshape(1, 2)}
    biased = {**_W, "b": np.ones(7, np.float32)}
    return {
        "pads as large as the kernel": _one(
            "MaxPool", _IMAGE, kernel_shape=[2, 2], pads=[2, 0, 0, 0]
        ),
        "group of zero": _one("Conv", _IMAGE, _W, group=0),
        "another kernel_shape": _one("Conv", _IMAGE, _W, kernel_shape=[5, 5]),
        "perm too short": _one("Transpose", [2, 3], perm=[0]),
        "LSTM, W": _lstm(weights={"W": np.ones((1, 8, 4))}),
        "LSTM sideways": _lstm(direction="sideways"),
        "value's name of 64 KB": _value_named(65_536),
        "GatherElements": _one("GatherElements", [2, 2], elements, axis=1),
        "GatherND": _one("GatherND", [2, 2], {"i": pair}),
        "ScatterND": _one("ScatterND", [4], scattered),
        "ScatterElements": _one("ScatterElements", [4], {"i": _integers(-5), "u": _ONES}),
        "other channels": _one("Conv", [1, 5, 8, 8], _W),
        "bias": _one("Conv", _IMAGE, biased),
        "Reshape": _one("Reshape", [2, 3], {"s": _integers(4, 4)}),
        "Einsum, sizes": _one("Einsum", [2, 3], _WIDE, equation="ij,jk->ik"),
    }


BROKEN: tuple[Broken, ...] = (
    *(
        Broken(name, made if callable(made) else made.SerializeToString, says)
        for name, (made, says) in _sentences().items()
    ),
    *(Broken(name, made.SerializeToString) for name, made in _by_the_standard().items()),
)
"""Every model that the import refuses."""
REFUSED_WHEN_RUN = tuple(Broken(name, made.SerializeToString) for name, made in _when_run().items())
"""Every model that is refused by whoever runs it first."""
