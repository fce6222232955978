"""Every way a model can be unusable gets its own clear sentence.

Reading a model file ends soon and in one sentence, whatever the file is.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from collage_engine.model.dimensions import set_shapes
from collage_engine.model.importer import import_model, import_onnx
from collage_engine.model.onnx_checks import check_graph
from collage_engine.model.onnx_cleanup import MOST_NODES, clean_up, without_functions
from collage_engine.model.onnx_file import read_model, write_plainly
from collage_engine.support.errors import ModelError, UsageError
from tests import zoo
from tests.support.written import written
from tests.zoo.net import Net


def _sentence(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert "\n" not in text and "Traceback" not in text
    return text


def test_missing_file_and_folder_are_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"):
        read_model(tmp_path / "none.onnx")
    with pytest.raises(UsageError, match="is a folder"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    "data, said",
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"hello, I am a text file\n" * 9, "is not an ONNX"),
        (b"\x89PNG\r\n\x1a\n" + bytes(64), "is not an ONNX"),
        (b"PK\x03\x04" + bytes(range(256)), "is not an ONNX"),
    ],
)
def test_other_files_are_told_apart(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=said) as error:
        read_model(path)
    assert str(path) in _sentence(error)


def _external(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(
        zoo.mnist(), str(path), save_as_external_data=True, location="w.bin", size_threshold=64
    )
    return path


def test_external_weights_are_loaded_missing_or_short_ones_named(tmp_path: Path) -> None:
    path = _external(tmp_path)
    model, _ = read_model(path)
    whole = {t.name: numpy_helper.to_array(t) for t in zoo.mnist().graph.initializer}
    for tensor in model.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), whole[tensor.name])
    weights = tmp_path / "w.bin"
    data = weights.read_bytes()
    weights.write_bytes(data[:100])
    with pytest.raises(ModelError, match=r"w\.bin', which is truncated"):
        read_model(path)
    weights.unlink()
    with pytest.raises(ModelError, match=r"'w\.bin'.*which is missing") as error:
        read_model(path)
    _sentence(error)


def _tiny() -> onnx.ModelProto:
    net = Net("bad", opset=17)
    net.output(net.op("Relu", net.input("x", [2, 3]), name="first"))
    return net.model()


def _with(kind: str, inputs: list[str], outputs: list[str], **attributes: object):
    model = _tiny()
    model.graph.node.append(helper.make_node(kind, inputs, outputs, name="culprit", **attributes))
    return model


def test_random_numbers_and_an_output_of_nobody_are_named() -> None:
    with pytest.raises(ModelError, match="random numbers") as error:
        check_graph(_with("RandomNormalLike", ["x"], ["y"]), "m.onnx")
    assert "culprit" in _sentence(error) and "m.onnx" in str(error.value)
    model = _tiny()
    model.graph.output[0].name = "ghost"
    with pytest.raises(ModelError, match="nothing makes the output 'ghost'"):
        check_graph(model, "m.onnx")


def test_no_outputs() -> None:
    model = _tiny()
    del model.graph.output[:]
    with pytest.raises(ModelError, match="has no outputs"):
        check_graph(model, "m.onnx")


def test_optionals_and_maps() -> None:
    model = _tiny()
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [2]))
    model.graph.input[0].type.CopyFrom(helper.make_optional_type_proto(kind))
    with pytest.raises(ModelError, match="input 'x' is an optional value"):
        check_graph(model, "m.onnx")
    model = _tiny()
    model.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(kind))
    with pytest.raises(ModelError, match="input 'x' is a sequence of what"):
        check_graph(model, "m.onnx")


def test_sparse_tensors_are_refused() -> None:
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([5, 7], np.float32), "thin"),
        numpy_helper.from_array(np.array([1, 4], np.int64), "where"),
        [2, 3],
    )
    model = _tiny()
    branch = helper.make_graph([], "branch", [], [])
    branch.sparse_initializer.append(sparse)
    model.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branch))
    with pytest.raises(ModelError, match="sparse weights"):
        check_graph(model, "m.onnx")
    model = _tiny()
    model.graph.node.append(helper.make_node("Constant", [], ["z"], "held", sparse_value=sparse))
    with pytest.raises(ModelError, match="'held' holds a sparse tensor"):
        check_graph(model, "m.onnx")


def test_several_versions_of_the_standards_operators_are_refused() -> None:
    model = _tiny()
    model.opset_import.append(helper.make_opsetid("ai.onnx", model.opset_import[0].version - 1))
    with pytest.raises(ModelError, match=r"in several versions \(\d+, \d+\): keep"):
        write_plainly(model, "m.onnx")


def test_unknown_sizes_ask_for_the_option_that_gives_them() -> None:
    with pytest.raises(ModelError, match=r"\[batch, 3, 8, 8\].*--shape image=1,3,8,8") as error:
        set_shapes(zoo.build("dynamic_batch"), {}, "m.onnx")
    _sentence(error)
    model = _tiny()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="'x' is of unknown rank"):
        set_shapes(model, {}, "m.onnx")


@pytest.mark.parametrize(
    "shapes, said",
    [
        ({"img": (1, 3, 8, 8)}, "no such input"),
        ({"image": (1, 3, 8)}, "has 4 dimensions"),
        ({"image": (1, 4, 8, 8)}, "dimension 1 of the input 'image' is fixed to 3"),
        ({"image": (-1, 3, 8, 8)}, "must not be negative"),
    ],
)
def test_wrong_shape_option_is_wrong_usage(shapes: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        set_shapes(zoo.build("dynamic_batch"), shapes, "m.onnx")


def test_a_fixed_size_is_refused_with_a_command_that_opens_it(tmp_path: Path) -> None:
    net = Net("fixed")
    net.output(net.op("Relu", net.input("x", [1, 3, 8, 8])))
    path, shapes = tmp_path / "m.onnx", {"x": (1, 3, 16, 8)}
    onnx.save(net.model(), path)
    with pytest.raises(UsageError) as error:
        import_model(path, shapes)
    command = shlex.split(str(error.value).rpartition(": ")[2])
    subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True)
    assert import_model(tmp_path / "open.onnx", shapes).inputs[0][1].shape == (1, 3, 16, 8)


def test_what_onnx_does_not_convert_is_to_be_exported_again() -> None:
    net = Net("old", opset=6)
    net.output(net.op("ImageScaler", net.input("x", [1, 3, 4, 4]), scale=2.0, bias=[0.0] * 3))
    with pytest.raises(ModelError, match=r"m\.onnx uses .* set 6, .* export .* 7 or newer"):
        import_onnx(net.model(), "m.onnx")


def test_training_is_refused() -> None:
    net = Net("train", opset=13)
    ratio, mode = net.const(np.float32(0.5)), net.const(np.bool_(True))
    net.output(net.op("Dropout", net.input("x", [2, 3]), ratio, mode, name="drop"))
    with pytest.raises(ModelError, match=r"'drop' \(Dropout\) is in training mode"):
        clean_up(net.model(), "m.onnx")


def test_a_named_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="not a regular file"):
        read_model(tmp_path / "m.onnx")


def laughs(levels: int) -> onnx.ModelProto:
    """Return functions that each call the one before twice: 2**levels nodes in a few kilobytes."""
    kinds = ["Relu", *(f"local.f{level}" for level in range(levels))]
    functions = "".join(
        f'<domain: "local", opset_import: ["": 17, "local": 1]> f{level} (a) => (c)'
        f" {{ b = {kinds[level]}(a) c = {kinds[level]}(b) }}"
        for level in range(levels)
    )
    call = f"(float[2,3] x) => (y) {{ y = {kinds[-1]}(x) }}"
    return written(f"{call} {functions}", opset=17, more='"local": 1')


def test_functions_that_double_end_before_they_fill_the_memory() -> None:
    assert len(without_functions(laughs(12)).graph.node) == 2**12
    with pytest.raises(ModelError, match=f"more than {MOST_NODES} nodes"):
        without_functions(laughs(34))
