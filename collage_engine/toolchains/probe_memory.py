"""Keeps between processes what probing a toolchain found: probing loads every library there is.

An answer is taken from here only while nothing that it rests on has changed: this project's own
sources and the toolchain's, the machine, the folders of the Python environment's packages, the
dynamic linker's cache, the variables that choose libraries and compilers, and the NVIDIA driver's
traces. (A file that is removed or replaced within a package's folder is not seen; ``collage
toolchains`` probes anew.) What is missing is asked again after as long as a whole job may take (no
list of places where it might appear is complete): asking costs a run seconds for each. That a probe
was ended at a limit is kept as long as an answer: waiting for it again would cost every command
that time. What crashed is asked again.
Two Python environments on one machine each have a file of their own, so that those who use them in
turn do not probe each time.
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
from functools import cache
from pathlib import Path

import msgspec

from collage_engine.machine.device import fingerprint
from collage_engine.machine.folders import cache_folder
from collage_engine.records.toolchain import ToolchainState
from collage_engine.support.files import write_atomically
from collage_engine.support.time_limits import JOB_S
from collage_engine.support.typed import decode
from collage_engine.toolchains.sources import hash_files, package_files, source_files

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
_DRIVER = ("/etc/ld.so.cache", "/dev/dxg", "/usr/lib/wsl/lib")


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one file of the memory."""

    surroundings: str
    at: float
    """Seconds since 1970 at which the toolchain was probed."""
    state: ToolchainState


def recall(name: str, target: str) -> ToolchainState | None:
    """Return the state found earlier, if nothing it rests on has changed; None: probe."""
    try:
        kept = decode(_file(name).read_bytes(), _Kept)
    except (OSError, msgspec.DecodeError):
        return None
    state = kept.state
    lasts = state.available or state.fault or 0 <= time.time() - kept.at < JOB_S
    return state if lasts and kept.surroundings == surroundings(name, target) else None


def keep(state: ToolchainState, before: str) -> None:
    """Remember a probe that answered, or that was ended at a limit, where the cache can be written.

    Args:
        state: What was found.
        before: The ``surroundings`` that the probe was started in.
    """
    kept = msgspec.json.encode(_Kept(surroundings=before, at=time.time(), state=state))
    file = _file(state.name)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, kept)


def surroundings(name: str, target: str) -> str:
    """Return a hash of what decides a probe's answer before it has loaded anything.

    Args:
        name: The toolchain's name.
        target: Module and class of the toolchain.
    """
    begins = (*_VARIABLES, name.upper())
    variables = {k: v for k, v in os.environ.items() if k.startswith(begins)}
    devices = sorted(str(path) for path in Path("/dev").glob("nvidia*"))
    packages = {folder: _stamp(folder) for folder in _package_folders()}
    driver = {path: _stamp(path) for path in _DRIVER}
    version = Path("/proc/driver/nvidia/version")
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
        version.read_text() if version.exists() else "",
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _stamp(path: str) -> tuple[int, int] | None:
    """Return bytes and time of the last change, by which two versions of a file are told apart."""
    try:
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
    return hash_files(source_files(_ENGINE / room for room in ("machine", "kernels", "toolchains")))


@cache
def _foreign_sources(module: str) -> str:
    """Hashes the package that a toolchain's module belongs to, where it is not this project."""
    own = module.partition(".")[0] == __name__.partition(".")[0]
    return "" if own else hash_files(package_files(module))


def _file(name: str) -> Path:
    environment = f"{sys.executable}\0{os.environ.get('PYTHONPATH', '')}"
    digest = hashlib.sha256(environment.encode()).hexdigest()
    return cache_folder() / "probes" / f"{name}-{digest[:12]}.json"
