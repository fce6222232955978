"""Several shapes: what the user may write, and the shapes of inputs that follow."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shlex

import numpy as np
import onnx
import pytest

from collage_engine.cli.options import dimension, settings_from, shape, shape_choices
from collage_engine.cli.parser import build_parser
from collage_engine.model.dimensions import input_shapes, kept_sizes, open_sizes, set_shapes
from collage_engine.model.onnx_file import write_plainly
from collage_engine.records.shapes import (
    MOST_SHAPES,
    OpenSizes,
    ShapeChoice,
    listed,
)
from collage_engine.support.errors import ModelError, UsageError
from tests.support.written import written
from tests.zoo.net import Net


def place(*more: str) -> argparse.Namespace:
    return build_parser().parse_args(["place", "m.onnx", "-o", "out", *more])


def text_model():
    """Two inputs [batch, sequence], one of them fixed to three classes besides."""
    net = Net("text", opset=13, seed=0)
    a = net.input("ids", ["batch", "sequence"])
    b = net.input("mask", ["batch", "sequence"])
    net.input("extra", ["batch", 3])
    net.output(net.op("Add", a, b), shape=["batch", "sequence"])
    return net.model()


@pytest.mark.parametrize("text", ["batch", "batch=", "=1", "batch=x", "batch=-1", "b=1,1", "b=1x2"])
def test_what_is_no_dimension_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        dimension(text)


def test_values_of_dimensions_combine_in_the_users_order():
    found = shape_choices(place("--dim", "batch=4,1", "--dim", "sequence=64,128"))
    sizes = [(choice.dims["batch"], choice.dims["sequence"]) for choice in found]
    assert sizes == [(4, 64), (4, 128), (1, 64), (1, 128)]
    assert found[0].text == "batch=4 sequence=64"


def test_a_file_lists_combinations_and_whole_inputs(tmp_path):
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps([{"batch": 1, "y": [2, 3]}, {"batch": 8}]))
    found = shape_choices(place("--shapes", str(path), "--shape", "y=4,3"))
    assert found == (
        ShapeChoice(dims={"batch": 1}, shapes={"y": (2, 3)}),
        ShapeChoice(dims={"batch": 8}, shapes={"y": (4, 3)}),
    )


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"batch": 1}, r"Expected `array`, got `object` \(write it like"),
        ([], "Expected `array` of length >= 1"),
        ([{}], "names no dimension"),
        ([{"batch": -1}], "Expected `int` >= 0"),
        ([{"batch": True}], "got `bool`"),
        ([{"x": [1, "y"]}], "Expected `int`, got `str`"),
        ([{"x": [2**40, 2**40]}], "larger than any memory"),
        ([{"batch": 1}, {"batch": 1}], "batch=1 is listed twice"),
        ([{"batch": k + 1} for k in range(MOST_SHAPES + 1)], f"at most {MOST_SHAPES}"),
    ],
)
def test_wrong_lists_say_what_is_wrong(data, says):
    with pytest.raises(UsageError, match=says):
        listed(data, "--shapes f.json")


def test_options_that_contradict_each_other_are_refused(tmp_path):
    path = tmp_path / "shapes.json"
    path.write_text('[{"batch": 1}]')
    with pytest.raises(UsageError, match="give one of them"):
        shape_choices(place("--dim", "batch=1", "--shapes", str(path)))
    with pytest.raises(UsageError, match="--others: name the shapes"):
        shape_choices(place("--others"))
    with pytest.raises(UsageError, match="leave out --dim"):
        shape_choices(place("--from-calls", "calls.jsonl", "--dim", "batch=1"))
    path.write_text("[{")
    with pytest.raises(UsageError, match="is no JSON"):
        shape_choices(place("--shapes", str(path)))
    with pytest.raises(UsageError, match="two different values for 'batch'"):
        shape_choices(place("--dim", "batch=1", "--dim", "batch=2"))


def decoder() -> onnx.ModelProto:
    """A step of a decoder: the mask's length is the sum of two named lengths."""
    net = Net("decoder", opset=17)
    ids = net.input("ids", ["batch", "seq"])
    past = net.input("past.0", ["batch", "past_len", 8])
    mask = net.input("mask", ["batch", "past_len + seq"])
    pairs = net.input("pairs", ["2*seq*batch"])
    for value in (ids, past, mask, pairs):
        net.output(net.op("Neg", value))
    return net.model()


def sizes_of(model: onnx.ModelProto) -> dict[str, list[int]]:
    return {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}


@pytest.mark.parametrize("past", [0, 5])
def test_names_that_are_sums_and_products_are_computed(past: int) -> None:
    model = decoder()
    assert list(open_sizes(model).dimensions) == ["batch", "seq", "past_len"]
    wanted = {"ids": [3, 6], "past.0": [3, past, 8], "mask": [3, past + 6], "pairs": [36]}
    found = input_shapes(model, {"batch": 3, "seq": 6, "past_len": past}, {}, "m.onnx")
    assert {name: [*sizes] for name, sizes in found.items()} == wanted
    # What is given for two inputs alone holds for the others, too.
    set_shapes(model, {"ids": (3, 6), "past.0": (3, past, 8)}, "m.onnx")
    assert sizes_of(model) == wanted


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"ids": (1, 6), "past.0": (1, 0, 8), "mask": (1, 7)}, "makes 'past_len [+] seq' 7.* 6"),
        ({"ids": (1, 6), "pairs": (6,)}, "makes '2[*]seq[*]batch' 6.* 12"),
        ({"ids": (1, 6), "mask": (2, 6)}, "about 'batch'"),
    ],
)
def test_sums_that_do_not_add_up_are_refused(shapes: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        set_shapes(decoder(), shapes, "m.onnx")
    with pytest.raises(UsageError, match=says):
        input_shapes(decoder(), {}, shapes, "m.onnx")


def test_arrays_say_the_sizes_that_are_left_open() -> None:
    arrays = {"ids": (1, 2), "past.0": (1, 0, 8), "mask": (1, 2), "pairs": (4,), "other": (9,)}
    found = input_shapes(decoder(), {}, {}, "m.onnx", arrays)
    assert found == {name: sizes for name, sizes in arrays.items() if name != "other"}
    # Several samples stand along one more axis.
    several = {name: (7, *sizes) for name, sizes in arrays.items()}
    assert input_shapes(decoder(), {}, {}, "m.onnx", several) == found
    with pytest.raises(UsageError, match="--dim seq=3 contradicts --inputs"):
        input_shapes(decoder(), {"seq": 3}, {}, "m.onnx", arrays)
    with pytest.raises(UsageError, match=r"makes 'past_len \+ seq' 9"):
        input_shapes(decoder(), {}, {}, "m.onnx", arrays | {"mask": (1, 9)})


def advised(sentence: str) -> tuple[list[str], list[str]]:
    """Return the arguments after ``--shape`` and ``--dim`` in a sentence, as a shell reads them."""
    words = shlex.split(sentence[sentence.index("for example") :].split("; `")[0])
    pairs = list(itertools.pairwise(words))
    by_shape, by_dim = ([w for o, w in pairs if o == option] for option in ("--shape", "--dim"))
    return by_shape, by_dim


def test_the_advice_can_be_given_as_it_stands() -> None:
    net = Net("odd", opset=17)
    for name, sizes in (
        ("x", ["batch", 3, "a length", 4]),
        ("it's", ["batch", "rows;cols"]),
        ("sum", ["batch + batch"]),
    ):
        net.output(net.op("Neg", net.input(name, sizes)))
    with pytest.raises(ModelError) as refusal:
        set_shapes(net.model(), {}, "m.onnx")
    by_shape, by_dim = advised(str(refusal.value))
    set_shapes(net.model(), dict(map(shape, by_shape)), "m.onnx")
    dims = {name: size for name, (size,) in map(dimension, by_dim)}
    assert dims == {"batch": 1, "a length": 1, "rows;cols": 1}
    found = input_shapes(net.model(), dims, {}, "m.onnx")
    assert found == dict(map(shape, by_shape)) == {"x": (1, 3, 1, 4), "it's": (1, 1), "sum": (2,)}


def test_open_sides_of_an_image_have_the_size_of_one_in_the_advice() -> None:
    net = Net("odd", opset=17)
    net.output(net.op("Neg", net.input("x", ["batch", 3, "height", "width"])))
    with pytest.raises(ModelError) as refusal:
        set_shapes(net.model(), {}, "m.onnx")
    by_shape, by_dim = advised(str(refusal.value))
    assert by_shape == ["x=1,3,224,224"]
    assert by_dim == ["batch=1", "height=224", "width=224"]


@pytest.mark.parametrize("name", ["batch-size", "seq/2", "f(seq)", "seq + gap", "2**seq", "a b"])
def test_names_that_only_look_like_computations_are_names(name: str) -> None:
    net = Net("odd", opset=17)
    net.output(net.op("Neg", net.input("x", ["seq", name])))
    assert list(open_sizes(net.model()).dimensions) == ["seq", name]
    found = input_shapes(net.model(), {"seq": 2, name: 7}, {}, "m.onnx")
    assert found == {"x": (2, 7)}


@pytest.mark.parametrize("name", ["?", "?x", "-1", "None", "*", "9"])
def test_names_that_tell_no_size_from_another_name_nothing(name: str) -> None:
    net = Net("odd", opset=17)
    x = net.input("x", ["batch", 3, name, name])
    net.output(net.op("Add", x, net.input("y", ["batch", name, name, name])), shape=[name] * 4)
    model = net.model()
    write_plainly(model, "m.onnx")
    assert open_sizes(model) == OpenSizes(inputs={"x": (1, 3, 1, 1), "y": (1, 1, 1, 1)})
    arrays = {"x": (2, 3, 48, 192), "y": (2, 1, 1, 192)}
    assert input_shapes(model, {}, {}, "m.onnx", arrays) == arrays
    with pytest.raises(
        UsageError, match=f"--dim {re.escape(name)}: .* no such dimension .*'batch'"
    ):
        input_shapes(model, {name: 4}, {}, "m.onnx")
    with pytest.raises(
        ModelError, match=r"'x' is \[batch, 3, \?, \?\].*--shape x=1,3,224,224"
    ) as refusal:
        set_shapes(model, {}, "m.onnx")
    assert "--dim" not in str(refusal.value)


def with_values() -> onnx.ModelProto:
    """Return ``x·w + b`` with values for the inputs ``w`` and ``b``."""
    return written(
        "(float[batch,rows] x, float[rows,2] w, float b) => (y) { p = MatMul(x, w) y = Add(p, b) }",
        {"w": np.ones((3, 2), np.float32), "b": np.float32(0)},
        opset=17,
    )


@pytest.mark.parametrize(
    "options", [["--keep-inputs", "b,w"], ["--keep-inputs", "w", "--keep-inputs", "b"]]
)
def test_inputs_that_are_kept_have_the_sizes_of_their_values(options: list[str]) -> None:
    shapes = settings_from(place(*options)).shapes
    assert shapes == {"w": (), "b": ()}
    assert kept_sizes(with_values(), shapes, "m.onnx") == {"w": (3, 2), "b": ()}
    (choice,) = shape_choices(place(*options, "--dim", "batch=2"))
    assert input_shapes(with_values(), choice.dims, choice.shapes, "m.onnx") == {
        "x": (2, 3),
        "w": (3, 2),
        "b": (),
    }
    assert kept_sizes(with_values(), {"w": (3, 2)}, "m.onnx") == {"w": (3, 2)}


@pytest.mark.parametrize(
    ("name", "says"), [("x", "it is an input that has no value in m.onnx"), ("z", "no such input")]
)
def test_what_is_no_input_with_a_value_cannot_be_kept(name: str, says: str) -> None:
    model = with_values()
    with pytest.raises(UsageError, match=f"--keep-inputs {name}: .*{says}"):
        set_shapes(model, kept_sizes(model, {name: ()}, "m.onnx"), "m.onnx")
    del model.graph.input[2]
    with pytest.raises(UsageError, match="--keep-inputs b: it is a constant and no input"):
        kept_sizes(model, {"b": ()}, "m.onnx")


def test_a_models_dimensions_give_the_shapes_of_all_its_inputs():
    model = text_model()
    dimensions = {"batch": ("ids", "mask", "extra"), "sequence": ("ids", "mask")}
    assert open_sizes(model) == OpenSizes(dimensions=dimensions)
    assert input_shapes(model, {"batch": 2, "sequence": 7}, {}, "m.onnx") == {
        "ids": (2, 7),
        "mask": (2, 7),
        "extra": (2, 3),
    }


def test_inputs_with_nameless_open_sizes_are_given_whole_with_the_dimensions_that_they_have():
    """The sizes that the desktop asks for are enough for the model to be read."""
    net = Net("nameless", opset=17)
    for name, sizes in (("x", ["batch", None]), ("y", ["batch", 3]), ("z", ["seq"]), ("r", [])):
        net.output(net.op("Neg", net.input(name, sizes)))
    model = net.model()
    model.graph.input[3].type.tensor_type.ClearField("shape")
    assert open_sizes(model) == OpenSizes(
        dimensions={"seq": ("z",)}, inputs={"x": (1, 1), "r": (1, 1)}
    )
    found = input_shapes(model, {"seq": 7}, {"x": (2, 5), "r": (4,)}, "m.onnx")
    assert found == {"x": (2, 5), "y": (2, 3), "z": (7,), "r": (4,)}


@pytest.mark.parametrize(
    ("dims", "shapes", "says"),
    [
        ({"batsch": 1}, {}, r"no such dimension \(it has 'batch', 'sequence'\)"),
        ({"batch": 2}, {}, r"'ids' is \[2, sequence\].*--dim sequence=1"),
        ({"batch": 2}, {"ids": (1, 7)}, "--dim batch=2 contradicts --shape ids=1,7"),
    ],
)
def test_dimensions_that_do_not_fit_the_model_are_refused(dims, shapes, says):
    with pytest.raises(UsageError, match=says):
        input_shapes(text_model(), dims, shapes, "m.onnx")


def test_a_model_without_named_dimensions_says_so():
    net = Net("fixed", opset=13, seed=0)
    net.output(net.op("Relu", net.input("x", [1, 3])))
    with pytest.raises(UsageError, match="all sizes of its 1 input are fixed"):
        input_shapes(net.model(), {"batch": 1}, {}, "m.onnx")
