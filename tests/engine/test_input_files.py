"""What ``--inputs`` names may be any file: each one that does not fit gets a sentence."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from collage_engine.candidates.input_files import stated_sizes
from collage_engine.candidates.inputs import model_samples, representative_inputs, stated_errors
from collage_engine.lowering.reference import original_outputs
from collage_engine.model.importer import ImportedModel, import_model, import_onnx
from collage_engine.model.own_file import original_model
from collage_engine.records.settings import RunSettings
from collage_engine.run.stages.samples import default_warnings
from collage_engine.support.errors import UsageError
from tests import zoo
from tests.support.written import written
from tests.zoo.net import Net


@pytest.fixture(scope="module")
def model() -> ImportedModel:
    return import_onnx(zoo.build("tiny"))


def npy(array: Any) -> bytes:
    """An array as numpy writes it."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array), allow_pickle=True)
    return stream.getvalue()


def archive(compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return stream.getvalue()


GOOD = npy(np.ones((1, 4), np.float32))


def header(shape: tuple[int, ...]) -> bytes:
    """The header of an array without its numbers."""
    about = {"descr": "<f4", "fortran_order": False, "shape": shape}
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, about)
    return stream.getvalue()


CASES = {
    "cut archive": (archive(x=GOOD)[:60], "no array of numbers"),
    "objects of the right shape": (archive(x=npy(np.full((1, 4), None))), "no array of numbers"),
    "a pickle": (archive(x=pickle.dumps([1, 2])), "no array of numbers"),
    "a cut array": (archive(x=GOOD[:-3]), "no array of numbers"),
    "another shape": (archive(x=npy(np.ones((4, 1), np.float32))), r"has shape \[4, 1\]"),
    "another type": (archive(x=npy(np.ones((1, 4)))), "'x' is float64, the model has float32"),
    "other byte order": (archive(x=npy(np.ones((1, 4), ">f4"))), "'x' is >f4"),
    "text array": (archive(x=npy(np.full((1, 4), "a"))), "'x' is <U1"),
    "negative sizes": (archive(x=header((-1, -4))), "has shape|no array of numbers"),
    "four terabytes": (archive(x=header((1 << 40,))), "no array of numbers"),
    "an unknown name": (archive(x=GOOD, y=GOOD), "has no input 'y'"),
    "a name of escapes": (archive(**{"\x1b]0;a": GOOD}), "has no input"),
}


@pytest.mark.parametrize("name", CASES)
def test_inputs_that_do_not_fit_get_a_sentence(model: ImportedModel, name: str) -> None:
    content, says = CASES[name]
    with pytest.raises(UsageError, match=says) as refused:
        representative_inputs(model, RunSettings(inputs_npz=content))
    said = str(refused.value)
    assert said.startswith("--inputs") and len(said) < 500 and said.isprintable()


def test_an_array_by_itself_is_for_the_only_input(model: ImportedModel) -> None:
    alone = archive(**{"": GOOD})
    assert representative_inputs(model, RunSettings(inputs_npz=alone))["x"].tolist() == [[1.0] * 4]
    assert stated_sizes(alone, ["x"]) == {"x": (1, 4)}
    net = Net("two")
    net.output(net.op("Add", net.input("a", [1, 4]), net.input("b", [1, 4])))
    with pytest.raises(UsageError, match=r"for a model with one input, and this one has a, b"):
        representative_inputs(import_onnx(net.model()), RunSettings(inputs_npz=alone))


def tensor(array: np.ndarray) -> bytes:
    return numpy_helper.from_array(array).SerializeToString()


def mixed(**members: bytes) -> bytes:
    """An archive of archives and tensors, whose names are written with ``__`` and ``_dot_``."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, content in members.items():
            file.writestr(name.replace("__", "/").replace("_dot_", "."), content)
    return stream.getvalue()


def sample(value: float) -> np.ndarray:
    return np.full((1, 4), value, np.float32)


def test_several_samples_come_along_an_axis_in_files_or_as_test_data(model: ImportedModel) -> None:
    stacked = archive(x=npy(np.stack([sample(1), sample(2), sample(3)])))
    data = mixed(
        a__test_data_set_2__input_0_dot_pb=tensor(sample(2)),
        a__test_data_set_10__input_0_dot_pb=tensor(sample(3)),
        b_dot_npz=archive(x=npy(sample(1))),
    )
    for content in (stacked, data):
        settings = RunSettings(inputs_npz=content)
        found = model_samples(model, settings, further=3)
        assert [each.inputs["x"].tolist() for each in found] == [
            sample(k).tolist() for k in (1, 2, 3)
        ]
        for each in found:  # each with its own true outputs
            (name,) = each.truth
            np.testing.assert_array_equal(
                each.truth[name], original_outputs(model, each.inputs)[name]
            )
        assert representative_inputs(model, settings)["x"].tolist() == sample(1).tolist()


def test_stated_outputs_are_compared_with_what_the_model_computes(model: ImportedModel) -> None:
    (name,) = original_outputs(model, {"x": sample(1)})
    right = [original_outputs(model, {"x": sample(k)})[name] for k in (1, 2)]
    for stated, off in ((right, {}), ([right[0], right[1] * 1.5], {name: pytest.approx(1 / 3)})):
        data = mixed(
            a__test_data_set_0__input_0_dot_pb=tensor(sample(1)),
            a__test_data_set_0__output_0_dot_pb=tensor(stated[0]),
            a__test_data_set_1__input_0_dot_pb=tensor(sample(2)),
            a__test_data_set_1__output_0_dot_pb=tensor(stated[1]),
        )
        samples = model_samples(model, RunSettings(inputs_npz=data))
        assert len(samples) == 2
        assert stated_errors(samples, {name: 1e-4}) == off
    wrong = mixed(s__input_0_dot_pb=tensor(sample(1)), s__output_0_dot_pb=tensor(np.ones(7)))
    with pytest.raises(UsageError, match=rf"'{name}' has shape \[7\]"):
        model_samples(model, RunSettings(inputs_npz=wrong))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (archive(x=npy(np.ones((0, 1, 4), np.float32))), "size 0"),
        (archive(x=npy(np.ones((101, 1, 4), np.float32))), "up to 100 samples"),
        (mixed(a_dot_npz=archive()), "input 'x' is missing"),
        (mixed(a_dot_npz=b"PK nothing"), "no array of numbers"),
        (mixed(s__input_1_dot_pb=tensor(sample(1))), "input 'x' is missing"),
        (mixed(s__input_0_dot_pb=tensor(np.ones((1, 4)))), "'x' is float64"),
        (mixed(s__input_0_dot_pb=tensor(np.ones((2, 2), np.float32))), r"has shape \[2, 2\]"),
        (mixed(s__input_0_dot_pb=b"\xff" * 40), "no array of numbers"),
    ],
)
def test_samples_that_do_not_fit_get_a_sentence(
    model: ImportedModel, content: bytes, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        model_samples(model, RunSettings(inputs_npz=content))


def test_inputs_that_fit_are_taken_compressed_or_not(model: ImportedModel) -> None:
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        given = archive(compression, x=GOOD)
        found = representative_inputs(model, RunSettings(inputs_npz=given))
        np.testing.assert_array_equal(found["x"], np.ones((1, 4), np.float32))


def test_the_sizes_of_the_first_sample_are_read_before_the_model() -> None:
    arrays = archive(x=npy(np.ones((7, 3))), y=npy(np.ones((), np.int64)), z=b"no array")
    assert stated_sizes(arrays, ["x", "y"]) == {"x": (7, 3), "y": ()}
    data = mixed(
        s_0__input_1_dot_pb=tensor(np.ones((5, 0), np.float32)),
        s_0__input_0_dot_pb=tensor(sample(1)),
        s_0__input_7_dot_pb=tensor(sample(1)),
    )
    assert stated_sizes(data, ["x", "y"]) == {"x": (1, 4), "y": (5, 0)}
    assert stated_sizes(mixed(a_dot_npz=arrays), ["x"]) == {"x": (7, 3), "y": ()}
    assert stated_sizes(b"PK nothing", ["x"]) == {}


@pytest.mark.parametrize("version", [3, 10])
def test_an_input_with_a_value_is_a_constant_or_is_kept(version: int, tmp_path: Path) -> None:
    built = written(
        "(float[2,3] x, float[3] w) => (y) { y = Mul(x, w) }",
        {"w": np.float32([1, 2, 3])},
        opset=17,
    )
    built.ir_version = version
    onnx.save(built, tmp_path / "m.onnx")
    given = RunSettings(
        inputs_npz=archive(x=npy(np.ones((2, 3), "f")), w=npy(np.float32([5, 6, 7])))
    )
    constant = import_model(tmp_path / "m.onnx")
    assert [name for name, _ in constant.inputs] == ["x"]
    said = default_warnings(constant)
    assert len(said) == (version > 3) and all("1 input ('w')" in each for each in said)
    with pytest.raises(UsageError, match=r"'w' has a value .* with --keep-inputs w"):
        model_samples(constant, given)
    kept = import_model(tmp_path / "m.onnx", {"w": ()})
    assert [name for name, _ in kept.inputs] == ["x", "w"] and not default_warnings(kept)
    assert kept.record.shapes == {"w": (3,)}
    (sample,) = model_samples(kept, given)
    np.testing.assert_array_equal(sample.truth["y"], [[5, 6, 7]] * 2)
    values = dict.fromkeys(kept.graph.record.inputs)
    nodes = kept.graph.everything
    own = original_model(kept, nodes, [*values], [*kept.graph.record.outputs])
    assert own is not None and [value.name for value in own.graph.input] == ["x", "w"]
    assert not own.graph.initializer


def test_a_shape_that_is_kept_as_an_input_is_sampled_as_the_file_has_it() -> None:
    model = written(
        "(float[2,3] x, int64[2] d) => (y) { y = Reshape(x, d) }", {"d": np.array([3, 2])}, opset=17
    )
    drawn = import_onnx(model, shapes={"d": ()}).random_inputs(0)
    np.testing.assert_array_equal(drawn["d"], [3, 2])
