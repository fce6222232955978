"""Texts and sequences of tensors at the border of a model are placed, exported and run."""

from __future__ import annotations

import json
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
DOUBLED = written(
    """(seq(float[]) many, float[2,3] one) => (seq(float[]) more, float[2,3] sum) {
        [insert] more = SequenceInsert(many, one)
        zero = Constant<value_int=0>()
        [first] first = SequenceAt(many, zero)
        [add] sum = Add(first, one)
    }""",
    opset=17,
)
"""A sequence with a tensor added to it, and the sum of the first and that one."""
SIZES = {"many[0]": (2, 3), "many[1]": (4,)}


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


def test_a_model_of_sequences_is_exported_and_run(tmp_path: Path) -> None:
    folder = exported(DOUBLED, SIZES, tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [each["name"] for each in manifest["inputs"]] == ["many[0]", "many[1]", "one"]
    assert [each["name"] for each in manifest["outputs"]] == [
        *(f"more[{place}]" for place in range(3)),
        "sum",
    ]
    check(folder)
    said = run_loaded(
        folder,
        "many, one = [np.ones((2, 3), 'f4'), np.arange(4, dtype='f4')], np.full((2, 3), 2, 'f4')\n"
        "found = model({'many': many, 'one': one})\n"
        "print([v.shape for v in found], found[3].max())",
    )
    assert said.strip() == "[(2, 3), (4,), (2, 3), (2, 3)] 3.0"


def test_a_sequence_without_sizes_is_refused_with_the_option() -> None:
    with pytest.raises(ModelError, match=r"'many' is a sequence.*--shape 'many\[0\]=2,3'"):
        import_onnx(DOUBLED, "m.onnx", evaluate=evaluate)


def test_an_input_without_elements_is_taken_where_the_user_says_so() -> None:
    model = written("(float[2,0] x) => (float[n] y) { y = ReduceSum<keepdims=0>(x) }", opset=17)
    with pytest.raises(ModelError, match=r"--shape x=2,1"):
        import_onnx(model, "m.onnx")
    imported = import_onnx(model, "m.onnx", {"x": (2, 0)}, evaluate=evaluate)
    assert imported.inputs[0][1].elements == 0
    with pytest.raises(UsageError, match="dimension 0 of the input 'x' is fixed to 2"):
        import_onnx(model, "m.onnx", {"x": (0, 2)})


def test_a_sequence_that_becomes_longer_ends_the_call(tmp_path: Path) -> None:
    # No sample has a value above 1e9, so nothing but the call itself can find the second tensor.
    model = written(
        """(float[3] x) => (seq(float[]) parts) {
            largest = ReduceMax<keepdims=0>(x)
            is_large = Greater(largest, limit)
            parts = If(is_large) <
                then_branch = g1 () => (seq(float[]) both) { both = SequenceConstruct(x, x) },
                else_branch = g2 () => (seq(float[]) single) { single = SequenceConstruct(x) }
            >
        }""",
        {"limit": np.float32(1e9)},
        opset=17,
    )
    folder = exported(model, {}, tmp_path)
    check(folder)
    said = run_loaded(
        folder,
        "print(model({'x': np.ones(3, 'f4')})[0])\n"
        "try:\n    model({'x': np.full(3, 2e9, 'f4')})\n"
        "except Exception as error:\n    print('ended:', 'out of' in str(error))",
    )
    assert said.split("\n")[:2] == ["[1. 1. 1.]", "ended: True"]


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
