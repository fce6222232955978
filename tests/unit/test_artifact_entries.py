"""Entries of an artifact: picked by shapes, padded along dimensions; and pools of instances.

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

import numpy as np
import pytest

from collage_engine.artifact.artifact import LOADERS
from collage_engine.artifact.combine import mark_padding
from collage_engine.artifact.loader import run_artifact as e
from collage_engine.artifact.loader.run_artifact import Pool


def value(name: str, *shape: int) -> dict:
    return {"name": name, "dtype": "float32", "shape": list(shape)}


def entry(batch: int, sequence: int, pooled: int | None = None) -> dict:
    return {
        "folder": f"{batch}-{sequence}",
        "dims": {"batch": batch, "sequence": sequence},
        "inputs": [value("ids", batch, sequence), value("mask", batch, sequence)],
        "outputs": [value("y", batch, pooled or 5)],
    }


def entries() -> list[dict]:
    return [entry(1, 64), entry(4, 64), entry(1, 128), entry(4, 128)]


PROOFS: dict = {
    "batch": ({"ids": (0,), "mask": (0,)}, {"y": (0,)}),
    "sequence": ({"ids": (1,), "mask": (1,)}, {}),
}
ENTRIES = entries()
PADDED, _ = mark_padding(ENTRIES, PROOFS)


def both(*shape: int) -> dict:
    return {"ids": shape, "mask": shape}


@pytest.mark.parametrize(
    "shapes", [both(3, 64), both(5, 64), both(1, 64, 1), {"ids": (1, 64)}, both(0, 64)]
)
def test_a_shape_that_is_not_there_is_named_with_those_that_are(shapes):
    with pytest.raises(ValueError, match=r"no entry for .*; it has ids \[1, 64\], mask"):
        e.pick(entries(), shapes)


def test_with_padding_the_smallest_larger_entry_is_picked():
    assert e.pick(ENTRIES, both(3, 64)) == (1, {"batch": 3})
    assert e.pick(ENTRIES, both(1, 65)) == (2, {"sequence": 65})
    assert e.pick(ENTRIES, both(2, 100)) == (3, {"batch": 2, "sequence": 100})
    assert e.pick(ENTRIES, both(2, 100))[0] == 3
    for wrong in (both(5, 64), both(1, 129), both(0, 64), {"ids": (3, 64), "mask": (2, 64)}):
        with pytest.raises(ValueError, match="smaller along batch, sequence"):
            e.pick(ENTRIES, wrong)


def test_inputs_are_not_padded_where_the_models_own_file_takes_less():
    timed = [ENTRIES[0], {**ENTRIES[1], "pays_from": 3 * 2 * 64}]
    assert e.pick(timed, both(3, 64), others=True) == (1, {"batch": 3})
    with pytest.raises(ValueError, match="no entry"):
        e.pick(timed, both(2, 64), others=True)
    assert e.pick(timed, both(2, 64)) == (1, {"batch": 2})
    assert e.pick(timed, both(4, 64), others=True) == (1, {})


def test_inputs_are_padded_where_the_proof_has_the_axes_of_the_entries():
    assert PADDED == ("batch", "sequence")
    ids, mask = ENTRIES[0]["inputs"]
    assert ids["dims"] == mask["dims"] == ["batch", "sequence"]
    assert ENTRIES[0]["outputs"][0]["dims"] == ["batch", None]
    found, refused = mark_padding(entries(), {**PROOFS, "sequence": "'n' (Softmax) mixes"})
    assert found == ("batch",) and "(Softmax)" in refused["sequence"]
    other: dict = {
        "batch": ({"ids": (1,), "mask": (0,)}, {"y": (0,)}),
        "sequence": ({"ids": (1,)}, {}),
    }
    found, refused = mark_padding(entries(), other)
    assert found == ("sequence",) and "other axes" in refused["batch"]
    unnamed: list[dict] = [{**entry(2, 64), "dims": {"sequence": 64}}, entry(2, 128)]
    found, refused = mark_padding(unnamed, PROOFS)
    assert found == ("sequence",) and "not every shape" in refused["batch"]


def test_inputs_are_padded_with_zeros_and_outputs_cut():
    given = {"ids": np.ones((3, 60)), "mask": np.ones((3, 60))}
    wide = e.padded(given, ENTRIES[1])
    assert wide["ids"].shape == (4, 64) and wide["ids"].sum() == 180
    (kept,) = e.cut([np.arange(20).reshape(4, 5)], ENTRIES[1], {"batch": 3})
    assert kept.tolist() == np.arange(15).reshape(3, 5).tolist()


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
