"""Entries of an artifact, to which fewer rows are padded; and pools of instances."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from collage_engine.machine.loader import run_artifact as loader
from collage_engine.machine.loader.run_artifact import Pool


def entry(batch: int, **more: int) -> dict:
    value = {"name": "x", "dtype": "float32", "shape": [batch, 5]}
    return {
        "folder": str(batch),
        "dims": {"batch": batch},
        "inputs": [value],
        "outputs": [value],
        **more,
    }


class Twice:
    """Stands for an entry's module."""

    def _outputs(self, inputs: dict) -> list[np.ndarray]:
        assert not inputs["x"][3:].any()
        return [2 * inputs["x"]]


def test_fewer_rows_are_padded_to_the_next_larger_entry(monkeypatch):
    monkeypatch.setattr(loader.Shapes, "_entry", lambda self, number: Twice())
    manifest = {"padding": "batch", "entries": [entry(8), entry(1), entry(4, pays_from=3)]}
    model = loader.Shapes(Path("out"), manifest)
    for rows in (3, 2, 1):
        (output,) = model(np.ones((rows, 5), np.float32))
        assert output.shape == (rows, 5) and (output == 2).all()
    counts = [(each["calls"], each["padded"]) for each in model.stats()["entries"]]
    assert counts == [(0, 0), (1, 0), (2, 2)]
    for wrong in ((9, 5), (0, 5), (3, 4), (3,), ()):
        with pytest.raises(ValueError, match=r"no entry for .*; it has x \[8, 5\]; x"):
            model(np.ones(wrong, np.float32))
    with pytest.raises(ValueError, match="input 'x' is missing"):
        model({})


def test_rows_are_not_padded_where_the_models_own_file_takes_less(monkeypatch):
    monkeypatch.setattr(loader.Shapes, "_entry", lambda self, number: Twice())
    manifest: dict = {"padding": "batch", "model": {}, "entries": [entry(4, pays_from=3)]}
    model = loader.Shapes(Path("out"), manifest, other=lambda inputs: [-inputs["x"]])
    assert (model(np.ones((3, 5), np.float32))[0] == 2).all()
    with pytest.warns(RuntimeWarning, match="no entry for x"):
        assert (model(np.ones((2, 5), np.float32))[0] == -1).all()


def test_a_pool_runs_as_many_at_once_as_it_has_instances():
    together = threading.Barrier(2, timeout=20)

    class Instance:
        def __init__(self, number: int) -> None:
            self.number = number
            self.thread = threading.get_ident()

        def __call__(self, inputs: int) -> tuple[int, int]:
            assert threading.get_ident() == self.thread
            together.wait()
            return self.number, inputs

    with closing(Pool(Instance, streams=2, threads=1)) as pool, ThreadPoolExecutor(6) as callers:
        found = [*callers.map(lambda k: pool.with_one(lambda model: model(k)), range(6))]
    assert [inputs for _, inputs in found] == list(range(6))
    assert {number for number, _ in found} == {0, 1}


def test_a_pool_passes_errors_on_and_goes_on():
    def make(_number: int):
        def model(inputs: int) -> int:
            return 1 // inputs

        return model

    with closing(Pool(make, streams=1, threads=1)) as pool:
        with pytest.raises(ZeroDivisionError):
            pool.with_one(lambda model: model(0))
        assert pool.with_one(lambda model: model(1)) == 1

    def refuses(_number: int):
        raise OSError("no such module")

    with pytest.raises(OSError, match="no such module"):
        Pool(refuses, streams=2, threads=1)
