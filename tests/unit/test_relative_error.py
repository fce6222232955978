"""Errors of computed numbers.

How many steps 8-bit results may be off, by the number of roundings.

Our .npz files.
"""

from __future__ import annotations

import numpy as np
import pytest

from collage_engine.lowering.accuracy import (
    most_steps,
    relative_bound,
    roundings,
    steps_apart,
)
from collage_engine.machine.loader.run_artifact import error_of, read_npz
from collage_engine.support.files import write_npz
from tests.support.graphs import GraphBuilder

INFINITE = (float("inf"), float("inf"))


@pytest.mark.parametrize(
    ("found", "truth", "expected"),
    [
        ([1.0, np.nan], [1.0, 2.0], INFINITE),
        ([np.inf, 2.0], [1.0, 2.0], INFINITE),
        ([np.inf, np.nan, 1.0], [np.inf, np.nan, 1.0], (0.0, 0.0)),
        ([-np.inf, np.nan, 1.0], [np.inf, np.nan, 1.0], INFINITE),
        ([np.inf, 0.0, 1.0], [np.inf, np.nan, 1.0], INFINITE),
        (np.zeros((2, 1)), np.zeros((1, 2)), INFINITE),
        (np.zeros((0, 2)), np.zeros((0, 2)), (0.0, 0.0)),
        (np.array([0], "uint8"), np.array([255], "uint8"), (255.0, 1.0)),
        ([2**62 + 1], [2**62], (1.0, 1.0)),
        ([True], [False], (1.0, 1.0)),
    ],
)
def test_errors_of_values_that_are_not_finite_empty_or_no_floats(found, truth, expected):
    assert error_of(np.array(found), np.array(truth)) == expected


def test_roundings_are_counted_along_the_longest_path() -> None:
    b = GraphBuilder((4,), "uint8")
    first = b.call("quantize", b.parameter())
    second = b.call("quantize", b.call("dequantize", first))
    graph = b.build(b.call("concat", second, b.call("quantize", b.parameter())))
    assert roundings(graph, graph.everything) == {0: 1, 1: 1, 2: 2, 3: 1, 4: 2}
    # What was rounded before the set is the truth already.
    assert roundings(graph, 0b10100) == {2: 1, 4: 1}


@pytest.mark.parametrize(("depth", "steps"), [(0, 0), (1, 1), (4, 3), (9, 4)])
def test_differences_grow_as_a_random_walk(depth: int, steps: int) -> None:
    assert most_steps(depth) == steps
    assert relative_bound(depth) >= steps / 255


def test_more_than_one_step_is_rare() -> None:
    true = np.zeros(10_000, np.uint8)
    off = true.copy()
    off[:5] = 2
    assert steps_apart(off, true, 1.0, 1) is not None
    assert steps_apart(off, true, 1.0, 4) is None
    off[:50] = 2
    assert "off by more than one step" in str(steps_apart(off, true, 1.0, 4))
    off[0] = 4
    assert "off by 4 steps, 3 are allowed" in str(steps_apart(off, true, 1.0, 4))


def test_dequantised_values_are_held_to_steps_of_their_scale() -> None:
    true = np.arange(100, dtype=np.float32) * np.float32(0.03)
    assert steps_apart(true + np.float32(0.03), true, 0.03, 1) is None
    assert steps_apart(true + np.float32(0.06), true, 0.03, 1) is not None


def test_any_name_and_type_survive(tmp_path):
    arrays = {
        "file": np.arange(6, dtype="float32").reshape(2, 3),
        "/enc/layer.0:out": np.array(7, "int64"),
        "empty": np.zeros((0, 3), "uint8"),
        "flags": np.array([True, False]),
        "transposed": np.arange(6, dtype="float16").reshape(2, 3).T,
    }
    write_npz(tmp_path / "a.npz", arrays)
    back = read_npz(tmp_path / "a.npz", {})
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_bfloat16_comes_back_with_the_type_it_is_said_to_have(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    write_npz(tmp_path / "b.npz", {"x": array})
    back = read_npz(tmp_path / "b.npz", {"x": "bfloat16"})["x"]
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
