"""Keeps between processes what probing a toolchain found: probing loads every library there is.

An answer is taken from here only while nothing that it rests on has changed: this project's own
sources, the machine, the Python environment's folders of packages, the variables that choose
libraries and compilers, the NVIDIA driver's traces, and size and time of every library and module
the probe had loaded when it answered. What is missing is asked again after minutes all the same
(no list of places where it might appear is complete). That a probe was ended at a limit is kept as
long as an answer: waiting for it again would cost every command that time. What crashed is asked
again.
Different surroundings, such as two Python environments on one machine, each have a file of their
own, so that those who use them in turn do not probe each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import site
import sys
import sysconfig
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from collage_engine.machine.device import fingerprint
from collage_engine.machine.folders import cache_folder
from collage_engine.records.files import write_atomically
from collage_engine.records.toolchain import ToolchainState
from collage_engine.records.typed import decode
from collage_engine.toolchains.sources import SUFFIXES, hash_files, package_files

HERE_SECONDS = 7 * 86400.0
"""Seconds for which an available toolchain's state is taken from here; chosen."""
MISSING_SECONDS = 600.0
"""Seconds for which a missing toolchain's state is taken from here: no list of places where it
might appear is complete. Chosen: a session's length, short enough for whoever installs it."""

_ENGINE = Path(__file__).resolve().parents[1]
_VARIABLES = (
    "COLLAGE_BUILD_DIR",
    "CUDA",
    "CXX",
    "LD_",
    "NVIDIA",
    "ONEAPI",
    "PATH",
    "PYTHON",
    "TVM_",
)
"""Beginnings of the names of environment variables that choose what is loaded, compiled with, or
seen. Those that begin with the toolchain's name count, too."""
_DRIVER = ("/etc/ld.so.cache", "/dev/dxg", "/proc/driver/nvidia/version", "/usr/lib/wsl/lib")

Stamp = tuple[int, int]
"""Bytes of a file, and nanoseconds of its last change since 1970, by which two versions of it are
told apart."""


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """A probe's child prints the state, and the files that it rests on."""

    state: ToolchainState
    files: dict[str, Stamp] = {}


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one file of the memory."""

    surroundings: str
    at: float
    """Seconds since 1970 at which the toolchain was probed."""
    probed: Probed


def recall(name: str, target: str) -> ToolchainState | None:
    """Return the state found earlier, if nothing it rests on has changed; None: probe."""
    around = surroundings(name, target)
    try:
        kept = decode(_file(name, around).read_bytes(), _Kept)
    except (OSError, msgspec.DecodeError):
        return None
    state = kept.probed.state
    lasts = HERE_SECONDS if state.available or state.fault else MISSING_SECONDS
    if not 0 <= time.time() - kept.at < lasts:
        return None
    if kept.surroundings != around:
        return None
    if any(_stamp(path) != stamp for path, stamp in kept.probed.files.items()):
        return None
    return state


def keep(name: str, probed: Probed, before: str) -> None:
    """Remember a probe that answered, or that was ended at a limit.

    Without a list of files (not Linux) no answer is kept; nor where the cache cannot be written.

    Args:
        name: The toolchain's name.
        probed: What was found.
        before: The ``surroundings`` that the probe was started in.
    """
    if not probed.files and not probed.state.fault:
        return
    kept = msgspec.json.encode(_Kept(surroundings=before, at=time.time(), probed=probed))
    file = _file(name, before)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, kept)
        for other in file.parent.glob(f"{name}*.json"):
            if time.time() - other.stat().st_mtime > HERE_SECONDS:
                other.unlink()


def surroundings(name: str, target: str) -> str:
    """Returns a hash of what decides a probe's answer before it has loaded anything.

    Args:
        name: The toolchain's name.
        target: Module and class of the toolchain.
    """
    begins = (*_VARIABLES, name.upper())
    variables = {k: v for k, v in os.environ.items() if k.startswith(begins)}
    devices = sorted(str(path) for path in Path("/dev").glob("nvidia*"))
    packages = {folder: _stamp(folder) for folder in _package_folders()}
    driver = {path: _stamp(path, content=path.startswith("/proc")) for path in _DRIVER}
    parts = [
        target,
        sys.executable,
        sys.version,
        fingerprint(),
        _sources(),
        _foreign_sources(target.partition(":")[0]),
        variables,
        devices,
        packages,
        driver,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def files_in_use() -> dict[str, Stamp]:
    """Returns this process's libraries and modules, without Python's own and this project's."""
    try:
        maps = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return {}
    columns = (line.split(maxsplit=5) for line in maps)
    mapped = (c[5] for c in columns if len(c) == 6 and c[5].startswith("/"))
    modules = (getattr(module, "__file__", None) or "" for module in [*sys.modules.values()])
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    own = str(_ENGINE) + os.sep
    loaded = (
        file
        for file in modules
        if file.startswith("/")
        and not file.startswith(own)
        and ("-packages" in file or not file.startswith(standard))
    )
    return _stamps((*mapped, *loaded))


def _stamps(paths: Iterable[str]) -> dict[str, Stamp]:
    found = {path: _stamp(path) for path in sorted(set(paths))}
    return {path: stamp for path, stamp in found.items() if stamp is not None}


def _stamp(path: str, *, content: bool = False) -> Stamp | None:
    """Returns a file's size and time; with ``content`` its hash, for files that have no times."""
    try:
        if content:
            digest = hashlib.sha256(Path(path).read_bytes()).digest()
            return 0, int.from_bytes(digest[:7], "big")
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _package_folders() -> list[str]:
    chosen = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    chosen += [*site.getsitepackages(), site.getusersitepackages()]
    chosen += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return sorted({folder for folder in chosen if folder})


@cache
def _sources() -> str:
    """Hashes the toolchains' sources and those by which they learn about the machine."""
    digest = hashlib.sha256()
    for room in ("machine", "kernels", "toolchains"):
        for path in sorted((_ENGINE / room).rglob("*")):
            if path.suffix in SUFFIXES:
                digest.update(f"{path.relative_to(_ENGINE)}\0".encode())
                digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def _foreign_sources(module: str) -> str:
    """Hashes the package that a toolchain's module belongs to, where it is not this project."""
    own = module.partition(".")[0] == __name__.partition(".")[0]
    return "" if own else hash_files(package_files(module))


def _file(name: str, around: str) -> Path:
    return cache_folder() / "probes" / f"{name}-{around[:12]}.json"
