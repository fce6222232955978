"""Compiles the adapters of the toolchains that are installed, for a wheel that carries them.

usage: compile_adapters.py FOLDER        also writes FOLDER/wheel.json, which hatch_build.py reads
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from collage_engine.artifact import custom_op
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains import registry
from collage_engine.toolchains.runtime import builder
from collage_engine.toolchains.runtime.toolchain import CppToolchain

ROOT = Path(__file__).resolve().parents[1]
GLIBC_OF_GLIBCXX = {26: 28, 27: 31, 28: 31, 29: 34, 30: 35, 31: 38, 32: 38, 33: 39}
"""Minor version of the glibc that comes with the libstdc++ that has symbols GLIBCXX_3.4.N, as
auditwheel's table of manylinux policies has it."""


def main(folder: Path) -> None:
    """Compile what is not in the cache yet, and copy what a wheel needs of it into a folder."""
    sources = [custom_op.source()]
    for name in registry.all_names():
        toolchain = registry.get(name)
        if isinstance(toolchain, CppToolchain):
            try:
                sources.append(toolchain.source())
            except ToolchainError as error:
                print(f"{name} is not in the wheel: {error}", file=sys.stderr)
    for source in sources:
        print(f"compiling {source.kind}", file=sys.stderr)
        built = builder.build(source)
        (folder / built.parent.name).mkdir()
        shutil.copyfile(built, folder / built.parent.name / built.name)
    tag = f"py3-none-manylinux_2_{_glibc(folder)}_{platform.machine()}"
    wheel = {"tag": tag, "dependencies": [*_installed("cpu"), 'ziglang>=0.13; extra == "cpu"']}
    (folder / "wheel.json").write_text(json.dumps(wheel))


def _glibc(folder: Path) -> int:
    """Return the minor version of the oldest glibc 2 where all compiled libraries load."""
    needed = {17}
    for file in folder.rglob("*.so"):
        content = file.read_bytes()
        needed.update(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", content))
        found = (int(minor) for minor in re.findall(rb"GLIBCXX_3\.4\.(\d+)", content))
        needed.update(GLIBC_OF_GLIBCXX[minor] for minor in found if minor > 25)
    return max(needed)


def _installed(extra: str) -> list[str]:
    """Return requirements of an extra with the versions that are installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(text) for text in project["optional-dependencies"][extra]]
    here = [one.name for one in wanted if one.marker is None or one.marker.evaluate()]
    return [f'{name}=={metadata.version(name)}; extra == "{extra}"' for name in here]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
