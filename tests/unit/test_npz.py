"""Our .npz files."""

from __future__ import annotations

import numpy as np
import pytest

from collage_engine.lowering.npz import read_npz, write_npz
from collage_engine.records.errors import UsageError


def test_any_name_and_type_survive(tmp_path):
    arrays = {
        "file": np.arange(6, dtype="float32").reshape(2, 3),
        "/enc/layer.0:out": np.array(7, "int64"),
        "empty": np.zeros((0, 3), "uint8"),
        "flags": np.array([True, False]),
        "transposed": np.arange(6, dtype="float16").reshape(2, 3).T,
    }
    write_npz(tmp_path / "a.npz", arrays)
    back = read_npz(tmp_path / "a.npz")
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)
    # numpy reads it too
    with np.load(tmp_path / "a.npz") as loaded:
        np.testing.assert_array_equal(loaded["file"], arrays["file"])


def test_bfloat16_comes_back_with_the_type_it_is_said_to_have(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    write_npz(tmp_path / "b.npz", {"x": array})
    back = read_npz(tmp_path / "b.npz", {"x": "bfloat16"})["x"]
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_equal_arrays_give_equal_bytes(tmp_path):
    for name in "ab":
        write_npz(tmp_path / name, {"x": np.ones(3)})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and then nothing", b"x" * 100])
def test_a_broken_file_is_named(tmp_path, content):
    path = tmp_path / "broken.npz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"broken\.npz"):
        read_npz(path)
