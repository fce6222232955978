"""What the loader of artifacts in C++ brings itself; nothing of an artifact is run."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from collage_engine.artifact.artifact import LOADERS


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
