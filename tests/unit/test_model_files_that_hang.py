"""Reading a model file ends soon and in one sentence, whatever the file is."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from onnx import helper

from collage_engine.model.onnx_checks import check_graph
from collage_engine.model.onnx_cleanup import clean_up
from collage_engine.model.onnx_file import parse_model, read_model
from collage_engine.model.onnx_standard import MOST_NODES, check_standard
from collage_engine.records.errors import ModelError, UsageError
from tests.support.broken_models import laughs, model


def _seconds(size: int) -> float:
    data = b"\xff" * size
    began = time.perf_counter()
    with pytest.raises(ModelError, match="is not an ONNX file"):
        parse_model(data, "m.onnx")
    return time.perf_counter() - began


def test_a_megabyte_of_ones_is_refused_in_linear_time() -> None:
    # Quadratic reading took more than a minute for one megabyte.
    assert _seconds(1 << 24) < 5.0


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a pipe"])
def test_special_files_are_refused_before_they_are_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.onnx"
    if kind == "device":
        path = Path("/dev/zero")
    else:
        os.mkfifo(tmp_path / "p")
        path.symlink_to(tmp_path / "p")
        path = path if kind.startswith("link") else tmp_path / "p"
    with pytest.raises(UsageError, match="not a regular file"):
        read_model(path)


def test_functions_that_double_are_counted_before_they_are_written_out() -> None:
    check_standard(laughs(12), "m.onnx")
    with pytest.raises(ModelError, match=f"at most {MOST_NODES} are supported"):
        check_standard(laughs(34), "m.onnx")


def test_functions_within_the_limit_pass_all_checks() -> None:
    check_graph(laughs(3), "m.onnx")
    check_standard(laughs(3), "m.onnx")


def _clean_up_lines(inputs: int) -> int:
    """Lines of Python that cleaning up a Sum of so many inputs takes."""
    node = helper.make_node("Sum", [f"x{i}" for i in range(inputs)], ["y"], name="sum")
    made = model([node], {f"x{i}": [2] for i in range(inputs)})
    lines = 0

    def count(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        clean_up(made, "m.onnx")
    finally:
        sys.settrace(before)
    return lines


def test_cleaning_up_takes_work_in_proportion_to_the_model() -> None:
    # Work that grew with the square would be sixteen times as much.
    assert _clean_up_lines(400) < 6 * _clean_up_lines(100)
