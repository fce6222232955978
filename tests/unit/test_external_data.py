"""Weights in files beside the model: from the model's folder alone, wherever the model names
them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from collage_engine.model.onnx_external import LEAST_BYTES, VARIABLE, every_tensor, is_mapped
from collage_engine.model.onnx_file import read_model
from collage_engine.support.errors import ModelError

_SIZE = 8


def _stored(location: str) -> TensorProto:
    tensor = TensorProto(name="k", data_type=TensorProto.UINT8, dims=[_SIZE])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def _constant(location: str) -> list:
    made = helper.make_node("Constant", [], ["c"], value=_stored(location))
    return [made, helper.make_node("Cast", ["c"], ["b"], to=TensorProto.FLOAT)]


def _of(nodes: list, functions: list | None = None) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [_SIZE])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [_SIZE])
    condition = numpy_helper.from_array(np.array(True), "t")
    graph = helper.make_graph(nodes, "g", [x], [y], [condition])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions or [])


def _in_a_branch(location: str) -> ModelProto:
    b = helper.make_tensor_value_info("b", TensorProto.FLOAT, [_SIZE])
    branch = helper.make_graph(_constant(location), "branch", [], [b])
    nodes = [
        helper.make_node("If", ["t"], ["z"], then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["x", "z"], ["y"]),
    ]
    return _of(nodes)


def _in_a_function(location: str) -> ModelProto:
    opsets = [helper.make_opsetid("", 17)]
    made = helper.make_function("local", "f", [], ["b"], _constant(location), opset_imports=opsets)
    nodes = [
        helper.make_node("f", [], ["z"], domain="local"),
        helper.make_node("Add", ["x", "z"], ["y"]),
    ]
    return _of(nodes, [made])


_KINDS: dict[str, Callable[[str], ModelProto]] = {
    "a branch's constant": _in_a_branch,
    "a function": _in_a_function,
}
_OUTSIDE = {
    "above": "../B/secret.bin",
    "absolute": "{folder}/B/secret.bin",
    "a link": "link.bin",
    "a link's folder": "way/secret.bin",
}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Folders A and B that hold different bytes under the same name; links from A to B."""
    for name in ("A", "B"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret.bin").write_bytes(name.encode() * _SIZE)
    (tmp_path / "A/link.bin").symlink_to(tmp_path / "B/secret.bin")
    (tmp_path / "A/way").symlink_to(tmp_path / "B")
    return tmp_path


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("working", ["A", "B", "/"])
def test_weights_come_from_the_models_folder_wherever_the_program_runs(
    folders: Path, monkeypatch: pytest.MonkeyPatch, kind: str, working: str
) -> None:
    path = folders / "A/m.onnx"
    path.write_bytes(_KINDS[kind]("secret.bin").SerializeToString())
    monkeypatch.chdir(working if working == "/" else folders / working)
    model, _ = read_model(path)
    found = {t.name: t.raw_data for t in every_tensor(model) if t.name == "k"}
    assert found == {"k": b"A" * _SIZE}
    assert all(not t.external_data for t in every_tensor(model))


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("place", _OUTSIDE)
def test_weights_outside_of_the_models_folder_are_never_read(
    folders: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    path = folders / "A/m.onnx"
    location = _OUTSIDE[place].format(folder=folders)
    path.write_bytes(_KINDS[kind](location).SerializeToString())
    monkeypatch.chdir(folders / "B")
    with pytest.raises(ModelError) as error:
        read_model(path)
    assert "BBBB" not in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("place", _OUTSIDE)
def test_weights_that_are_mapped_come_from_the_models_folder_too(
    folders: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    size = LEAST_BYTES
    for name in ("A", "B"):
        (folders / name / "secret.bin").write_bytes(name.encode() * size)
    monkeypatch.setenv(VARIABLE, str(size))
    path = folders / "A/m.onnx"

    def write(location: str) -> None:
        x, y = (helper.make_tensor_value_info(n, TensorProto.UINT8, [size]) for n in "xy")
        weight = _stored(location)
        weight.dims[:] = [size]
        graph = helper.make_graph([helper.make_node("Add", ["x", "k"], ["y"])], "g", [x], [y])
        graph.initializer.append(weight)
        path.write_bytes(helper.make_model(graph).SerializeToString())

    write("secret.bin")
    model, _ = read_model(path)
    assert is_mapped(model.graph.initializer[0])
    write(_OUTSIDE[place].format(folder=folders))
    with pytest.raises(ModelError, match="no file in the model's folder"):
        read_model(path)
