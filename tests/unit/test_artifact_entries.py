"""Pools of instances of an artifact.

What the loader of artifacts in C++ brings itself; nothing of an artifact is run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from collage_engine.artifact.artifact import LOADERS
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


def test_the_loaders_own_sha256_is_sha256(tmp_path: Path) -> None:
    source = tmp_path / "hash.cc"
    source.write_text(
        '#include "check_files.h"\n#include <iostream>\n'
        "int main(int n, char** v) {\n"
        "  for (int i = 1; i < n; ++i)\n"
        '    std::cout << collage::HashOf(v[i]) << "\\n";\n'
        "}\n"
    )
    program = tmp_path / "hash"
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-std=c++17", f"-I{LOADERS}", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=240)
    contents = [bytes(range(256)) * 4097, b"", *(b"a" * size for size in (1, 55, 56, 63, 64, 65))]
    for number, data in enumerate(contents):
        (tmp_path / str(number)).write_bytes(data)
    done = subprocess.run(
        [str(program), *(str(tmp_path / str(k)) for k in range(len(contents)))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [hashlib.sha256(data).hexdigest() for data in contents]
