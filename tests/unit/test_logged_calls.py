"""Shapes that are chosen from a log of a program's calls."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from collage_engine.farm.calls import LoggedShape, choose, reaches, read_calls, what_is_chosen
from collage_engine.patch import NodeArg, Recorder
from collage_engine.records.shapes import ShapeChoice
from collage_engine.support.errors import UsageError


def shape(calls: int, us: float, **dims: int) -> LoggedShape:
    return LoggedShape(ShapeChoice(dims=dims), calls, us)


def chosen(logged: list[LoggedShape], batch: str | None = None, most: int = 8) -> list[str]:
    return [choice.text for choice in choose(logged, batch, most)]


def write(path: Path, *calls: object) -> str:
    path.write_text("".join(json.dumps(call) + "\n" for call in calls))
    return str(path)


def test_the_shapes_that_took_most_of_the_time_are_chosen():
    logged = [shape(6, 40, w=1237), shape(100, 1, w=320), shape(6, 30, w=1017), shape(2, 1, w=9)]
    assert chosen(logged) == ["w=1237", "w=1017", "w=320"]  # the last one is 0.4 % of the time
    assert chosen(logged, most=2) == ["w=1237", "w=1017"]


def test_a_shape_that_came_once_is_chosen_where_others_are_padded_to_it():
    logged = [shape(1, 100, n=32), shape(1, 90, n=30), shape(2, 10, n=8)]
    assert chosen(logged) == ["n=8"]
    assert chosen(logged, "n") == ["n=32", "n=30", "n=8"]


def test_a_single_shape_is_chosen_even_where_it_is_hardly_ever_called():
    assert chosen([shape(1, 1.0, w=k) for k in range(1, 200)])


def test_with_padding_a_larger_shape_serves_smaller_ones_that_take_nearly_as_long():
    near = [shape(10, 99, n=31), shape(10, 100, n=32)]
    assert chosen(near) == ["n=32", "n=31"] and chosen(near, "n") == ["n=32"]
    far = [shape(10, 50, n=15), shape(10, 100, n=32)]
    assert chosen(far, "n") == ["n=32", "n=15"]  # padding 15 to 32 would take longer


def test_padding_needs_every_other_size_to_be_equal():
    def choice(batch: int, width: int, **shapes: tuple[int, ...]) -> ShapeChoice:
        return ShapeChoice(dims={"batch": batch, "width": width}, shapes=shapes)

    assert reaches(choice(4, 8), choice(3, 8), "batch")
    assert not reaches(choice(4, 8), choice(3, 7), "batch")
    assert not reaches(choice(4, 8), choice(5, 8), "batch")
    assert not reaches(choice(4, 8, x=(1,)), choice(4, 8, x=(2,)), "batch")
    assert reaches(choice(4, 8, x=(1,)), choice(4, 8, x=(1,)), None)


def test_calls_are_counted_by_shape_with_their_median_time(tmp_path):
    def line(us: float, **more: object) -> dict:
        return {"model": "m", "us": us, "dims": {"w": 3}, **more}

    other = line(7.0, model="another")
    whole = line(5.0, dims={}, shapes={"x": [1, 2]})
    log = write(tmp_path / "log", line(900), line(2), whole, other, whole, line(1))
    first, second = read_calls(log, "m")
    assert (first.choice.dims, first.calls, first.us) == ({"w": 3}, 3, 2)
    assert (second.choice.shapes, second.calls, second.us) == ({"x": (1, 2)}, 2, 5)
    logged = [first, second]
    assert what_is_chosen(choose(logged, None), logged) == (
        "5 calls of 2 shapes; 100% of their time is that of the shapes to be placed: x=1x2, w=3"
    )


def test_a_recorded_call_has_sizes_by_name_where_names_say_them(tmp_path):
    def recorded(*shapes: list[int | str | None]) -> LoggedShape:
        names = [f"i{k}" for k in range(len(shapes))]
        inputs = [
            NodeArg(name, "tensor(float)", of) for name, of in zip(names, shapes, strict=True)
        ]
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        arrays = {name: np.zeros((2, 3)) for name in names}
        Recorder(str(log), "m", inputs).note(arrays, 0.25)
        (found,) = read_calls(str(log), "m")
        assert (found.calls, found.us) == (1, 250_000)
        return found

    found = recorded(["batch", "n"], ["batch", 3]).choice
    assert (found.dims, found.shapes) == ({"batch": 2, "n": 3}, {})
    for unnamed in (["?", "?"], ["n", None], []):
        found = recorded(["batch", 3], unnamed).choice
        assert (found.dims, found.shapes) == ({"batch": 2}, {"i1": (2, 3)})


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([{"model": "m", "us": 1.0, "dims": {}}], "no call of this model with a size"),
        ([{"model": "a", "us": 1.0, "dims": {"w": 1}}], "no call of this model"),
        ([{"model": "m", "us": 1.0, "dims": {"w": 1}}, {"us": 1}], "line 2 is no call"),
        ([{"model": "m", "us": 1.0, "dims": {"w": "x"}}], "line 1 is no call"),
        ([{"model": "m", "us": -1.0, "dims": {"w": 1}}], "line 1 is no call"),
        ([{"model": "m", "us": 1.0, "dims": {"w": -1}}], "line 1 is no call"),
        ([], "no call of this model"),
    ],
)
def test_what_is_no_log_of_the_model_is_a_sentence(tmp_path, lines, says):
    with pytest.raises(UsageError, match=says):
        read_calls(write(tmp_path / "log", *lines), "m")


def test_a_log_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_calls(str(tmp_path / "nothing"), "m")
