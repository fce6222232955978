"""Every broken model gets one sentence that names the file, from the import or when it is run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage_engine.lowering.reference import original_outputs
from collage_engine.model.importer import import_model
from collage_engine.support.errors import SENTENCE_CHARACTERS, CollageError
from tests.support.written import written

RECURSIVE = """(float[2,3] x) => (y) { y = local.f(x) }
<domain: "local", opset_import: ["": 17, "local": 1]> f (a) => (c) { c = local.f(a) }"""
ADD = "(float[2,3] x) => (float[2,3] y) { y = Add(x, w) }"
ONES = np.ones((2, 3), np.float32)


def changed(text: str = "(float[2,3] x) => (y) { y = Relu(x) }") -> onnx.ModelProto:
    """Return a model that is then broken."""
    return written(text, {"w": ONES} if text is ADD else None)


def unknown_element_type() -> onnx.ModelProto:
    model = changed()
    model.graph.input[0].type.tensor_type.elem_type = 99
    return model


def short_tensor() -> onnx.ModelProto:
    model = changed(ADD)
    model.graph.initializer[0].raw_data = b"1234"
    return model


def stored_outside(**place: str) -> onnx.ModelProto:
    model = changed(ADD)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "self.onnx", **place}.items():
        tensor.external_data.add(key=key, value=value)
    return model


def with_name(name: str, reads: str = "nowhere") -> onnx.ModelProto:
    """Return a model whose node of this name reads a value that nobody makes, or another."""
    model = changed()
    model.graph.node[0].name, model.graph.node[0].input[0] = name, reads
    return model


HUGE = {"shape": np.array([100_000, 1_000_000])}
REFUSED: dict[str, tuple[onnx.ModelProto, str]] = {
    "recursive functions": (written(RECURSIVE, more='"local": 1'), "must not be recursive"),
    "no such operator": (changed("(float[2,3] x) => (y) { y = Rleu(x) }"), "Rleu"),
    "Gather beyond the end": (
        written("(float[8] x) => (y) { y = Gather(x, i) }", {"i": np.array([8])}),
        "",
    ),
    "sizes that do not fit": (written("(float[2,3] x) => (y) { y = MatMul(x, x) }"), ""),
    "offset that is no number": (stored_outside(offset="abc"), "'w' keeps its data in 'self.onnx'"),
    "length that does not fit": (stored_outside(length="5"), "'w' is broken|w"),
    "tensor of other bytes": (short_tensor(), "'?w"),
    "complex input": (changed("(complex64[2,3] x) => (y) { y = Relu(x) }"), "complex numbers"),
    "unknown element type": (unknown_element_type(), "unknown element type 99"),
    "input of 2**62 elements": (
        written("(float[2147483648,2147483648] x) => (y) { y = Relu(x) }"),
        "does not fit.*memory",
    ),
    "value of 400 GB": (
        written("(float[1] x) => (y) { y = Expand(x, shape) }", HUGE),
        "does not fit.*memory",
    ),
    "name of 64 KB": (with_name("n" * 65_536), "nowhere"),
    "escape sequence in a name": (
        with_name("\x1b]0;PWNED\x07culprit\nsecond"),
        r"\\x1b\]0;PWNED\\x07culprit",
    ),
    "input without elements": (
        changed("(float[0,4] x) => (y) { y = Relu(x) }"),
        r"'x' is \[\?, 4\].*--shape x=1,4",
    ),
    "newer operator set": (
        written("(float[2,3] x) => (y) { y = Relu(x) }", opset=999),
        "operator set 999",
    ),
}
"""Models with a pattern of the sentence."""


def refusal(path: Path) -> str:
    with pytest.raises(CollageError) as error:
        import_model(path)
    said = str(error.value)
    assert str(path) in said and said.isprintable() and "Traceback" not in said
    assert len(said) <= len(str(path)) + SENTENCE_CHARACTERS
    return said


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_model_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    model, says = REFUSED[name]
    path = tmp_path / "self.onnx"
    path.write_bytes(model.SerializeToString())
    said = refusal(path)
    assert re.search(says, said), said


def test_a_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "self.onnx"
    content = with_name("culprit", reads="x").SerializeToString()
    path.write_bytes(content.replace(b"culprit", b"culp\xff\xfet"))
    assert "not UTF-8" in refusal(path)


@pytest.mark.parametrize(
    "text",
    [
        "(float[1,3,8,8] x) => (y) { y = MaxPool<kernel_shape = [2,2], pads = [2,0,0,0]>(x) }",
        "(float[4] x) => (y) { i = Constant<value = int64[1,1] {9}>() y = ScatterND(x, i, x) }",
    ],
)
def test_what_the_import_takes_the_first_run_refuses(text: str, tmp_path: Path) -> None:
    """A placement begins with the true outputs of the file, before any code is made."""
    path = tmp_path / "self.onnx"
    path.write_bytes(changed(text).SerializeToString())
    model = import_model(path)
    with pytest.raises(CollageError, match=r"self\.onnx cannot be run"):
        original_outputs(model, model.random_inputs(0))
