"""Pools of instances of an artifact; nothing of an artifact is run."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from collage_engine.artifact.loader.run_artifact import Pool


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
