"""What both loaders of an artifact share; nothing of an artifact is run."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from collage_engine.artifact.artifact import LOADERS
from collage_engine.artifact.loader.run_artifact import KNOWN_ENDINGS, LIBRARY_LISTS, is_known
from collage_engine.artifact.manifest import check_environment
from collage_engine.records.errors import ArtifactError


def test_both_loaders_know_the_same_lists_of_libraries() -> None:
    text = (LOADERS / "check_files.h").read_text()
    listed = re.search(r"kLibraryLists\[\] = \{(.*?)\}", text, re.DOTALL)
    assert listed and tuple(re.findall(r'"([^"]+)"', listed[1])) == LIBRARY_LISTS


def test_both_loaders_know_the_same_variables_and_export_refuses_others() -> None:
    text = (LOADERS / "check_files.h").read_text()
    listed = re.search(r"kKnownEndings\[\] = \{(.*?)\}", text, re.DOTALL)
    assert listed and tuple(re.findall(r'"(\w+)"', listed[1])) == KNOWN_ENDINGS
    for name in ("PATH", "LD_PRELOAD", "_NUM_THREADS", "x_NUM_THREADS", "A=B_NUM_THREADS", ""):
        assert not is_known(name), name
    with pytest.raises(ArtifactError, match="LD_LIBRARY_PATH"):
        check_environment({"LD_LIBRARY_PATH": "/x"})


def test_every_toolchain_sets_only_variables_that_artifacts_may_set() -> None:
    from collage_engine.toolchains.registry import about, all_names

    for name in all_names():
        for spin in (False, True):
            check_environment(about(name).variables(2, spin))


def test_the_loaders_own_sha256_is_sha256(tmp_path: Path) -> None:
    source = tmp_path / "hash.cc"
    source.write_text(
        '#include "check_files.h"\n#include <iostream>\n'
        "int main(int n, char** v) {\n"
        "  for (int i = 2; i < n; ++i)\n"
        '    std::cout << collage::HashOfListed(v[1], v[i]) << "\\n";\n'
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
        [str(program), str(tmp_path), *map(str, range(len(contents)))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [hashlib.sha256(data).hexdigest() for data in contents]
