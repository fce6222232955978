"""Texts at the border of a model are placed, exported and run; sequences stay within it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage_engine.lowering.reference import run_onnx as evaluate
from collage_engine.model.importer import import_model, import_onnx
from collage_engine.model.values import TEXT_TYPE, bytes_of, decoded, encoded, from_bytes
from collage_engine.support.errors import ModelError, UsageError
from tests.support.artifact_cases import artifact_of, cover_in_turn
from tests.support.command import python
from tests.support.written import written
from tests.zoo.net import Net

JOINED = written(
    """(string[3] a, string[3] b) => (string[3] ab, bool[3] same, string end) {
        end = Constant<value_string="!">()
        each = Constant<value_strings=["", "é", "-"]>()
        [join] joined = StringConcat(a, b)
        [marked] marked = StringConcat(joined, each)
        [ended] ab = StringConcat(marked, end)
        [compare] same = Equal(a, b)
    }""",
    opset=20,
)
"""Two texts and constant ones joined, and which of the two are equal."""


def test_texts_are_bytes_of_one_width() -> None:
    values = encoded(np.array([["a", ""], ["Grüße", "two words"]], dtype=object))
    assert values.dtype == TEXT_TYPE and values.shape == (2, 2)
    assert bytes_of(values).shape == (2, 2, 256)
    np.testing.assert_array_equal(from_bytes(bytes_of(values)), values)
    assert decoded(values).tolist() == [["a", ""], ["Grüße", "two words"]]
    with pytest.raises(UsageError, match="257 bytes, and at most 256"):
        encoded(["x" * 257])


def exported(model: onnx.ModelProto, sizes: dict[str, tuple[int, ...]], folder: Path) -> Path:
    """Place everything on ONNX Runtime and export it."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    imported = import_model(path, sizes, evaluate=evaluate)
    return artifact_of(imported, cover_in_turn(imported, ["onnxruntime"]), folder)


def run_loaded(folder: Path, code: str) -> str:
    """What a process prints that has loaded an artifact as ``model``."""
    program = (
        f"import sys; sys.path.insert(0, {str(folder / 'loader')!r})\n"
        f"import numpy as np, run_artifact\nmodel = run_artifact.load({str(folder)!r})\n{code}"
    )
    done = python(program)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(folder: Path) -> None:
    """The loader's own check against the sample."""
    command = [sys.executable, str(folder / "loader" / "run_artifact.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "agrees with the sample" in done.stdout


def test_a_model_of_texts_is_exported_and_run(tmp_path: Path) -> None:
    folder = exported(JOINED, {}, tmp_path)
    check(folder)
    said = run_loaded(
        folder,
        "a, b = ['é', 'x', ''], ['y', 'x', '']\n"
        "print([v.tolist() for v in model({'a': a, 'b': b})])",
    )
    assert said.strip() == "[['éy!', 'xxé!', '-!'], [False, True, True], '!']"


def test_an_input_without_elements_is_taken_where_the_user_says_so() -> None:
    model = written("(float[2,0] x) => (float[n] y) { y = ReduceSum<keepdims=0>(x) }", opset=17)
    with pytest.raises(ModelError, match=r"--shape x=2,1"):
        import_onnx(model, "m.onnx")
    imported = import_onnx(model, "m.onnx", {"x": (2, 0)}, evaluate=evaluate)
    assert imported.inputs[0][1].elements == 0
    with pytest.raises(UsageError, match="dimension 0 of the input 'x' is fixed to 2"):
        import_onnx(model, "m.onnx", {"x": (0, 2)})


def test_a_sequence_of_constants_stays_a_sequence() -> None:
    """Their evaluation gives a list, which must not become a tensor of one more dimension."""
    net = Net("constants", opset=17)
    parts = [net.const(np.full((2, 3), k, np.float32)) for k in (5, 7)]
    many = net.op("SequenceConstruct", *parts)
    which = net.input("which", [], "int64")
    net.output(net.op("SequenceAt", many, which), shape=[2, 3])
    model = import_onnx(net.model(), evaluate=evaluate)
    for k, wanted in ((0, 5), (1, 7)):
        (found,) = evaluate(model.onnx, {"which": np.int64(k)})
        np.testing.assert_array_equal(found, np.full((2, 3), wanted, np.float32))
