"""Which toolchains exist, and what of them works on this machine.

Adding a toolchain is a folder and one line of ``TOOLCHAINS``. Classes are imported on first use,
libraries are probed in a child process: a library that crashes on load costs itself only. What
probing found is kept between processes (``probe_memory``).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from collage_engine.records.errors import UsageError
from collage_engine.records.reasons import last_line
from collage_engine.records.toolchain import ToolchainState
from collage_engine.records.typed import decode
from collage_engine.toolchains.probe_memory import Probed, files_in_use, keep, recall, surroundings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.toolchains.base import Toolchain

TOOLCHAINS: dict[str, str] = {
    "tvm": "collage_engine.toolchains.tvm.toolchain:TvmToolchain",
    "onnxruntime": "collage_engine.toolchains.onnxruntime.toolchain:OnnxRuntimeToolchain",
    "onednn": "collage_engine.toolchains.onednn.toolchain:OneDnnToolchain",
    "openvino": "collage_engine.toolchains.openvino.toolchain:OpenVinoToolchain",
    "openblas": "collage_engine.toolchains.openblas.toolchain:OpenBlasToolchain",
    "mkl": "collage_engine.toolchains.mkl.toolchain:MklToolchain",
    "cublas": "collage_engine.toolchains.cublas.toolchain:CublasToolchain",
    "cudnn": "collage_engine.toolchains.cudnn.toolchain:CudnnToolchain",
    "cutlass": "collage_engine.toolchains.cutlass.toolchain:CutlassToolchain",
    "tensorrt": "collage_engine.toolchains.tensorrt.toolchain:TensorrtToolchain",
}

TARGETS: dict[str, tuple[str, ...]] = {
    "tvm": ("cpu", "cuda"),
    "cublas": ("cuda",),
    "cudnn": ("cuda",),
    "cutlass": ("cuda",),
    "tensorrt": ("cuda",),
}
"""Kinds of devices of those that are not for the CPU alone (``Toolchain.targets``)."""

PROBE_SECONDS = 180.0
"""Enough to import TVM and to compile a runtime on a slow, busy machine."""

_SOURCES = {".py", ".cc", ".h", ".cu", ".cpp"}
_probed: dict[str, ToolchainState] = {}
_children: set[subprocess.Popen[str]] = set()
"""Probes under way."""
_probing = threading.Lock()
"""Held for looking at both, never while waiting."""


def all_names() -> tuple[str, ...]:
    """Every known toolchain, in the order in which they are shown and tried."""
    return tuple(TOOLCHAINS)


def targets_of(name: str) -> tuple[str, ...]:
    """Kinds of devices a toolchain compiles for, known without importing it."""
    return TARGETS.get(name, ("cpu",))


def names_for(target: str) -> tuple[str, ...]:
    """Toolchains that compile for a kind of device, cpu or cuda."""
    return tuple(name for name in TOOLCHAINS if target in targets_of(name))


@cache
def get(name: str) -> Toolchain:
    """The toolchain of that name; ``UsageError`` that lists the known ones for another."""
    _check(name)
    module, _, attribute = TOOLCHAINS[name].partition(":")
    toolchain: Toolchain = getattr(importlib.import_module(module), attribute)()
    return toolchain


@cache
def folder_hash(cls: type[Toolchain]) -> str:
    """SHA-256 over the sources that decide what the toolchain compiles.

    The folder of the class and of every base class that has one of its own (``runtime/`` for the
    C++ runtimes), plus the modules and packages named in the class attribute ``depends``.
    """
    root = Path(__file__).resolve().parent
    files: set[Path] = set()
    for base in cls.__mro__:
        module = sys.modules.get(base.__module__)
        file = getattr(module, "__file__", None)
        if file is None or base is object:
            continue
        folder = Path(file).resolve().parent
        if folder == root:
            continue  # the contract itself, and nothing below it
        if root in folder.parents or base is cls:
            files |= {p for p in folder.rglob("*") if p.suffix in _SOURCES}
    for name in getattr(cls, "depends", ()):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        if spec.submodule_search_locations is None:
            files.add(Path(spec.origin).resolve())
        else:
            package = Path(spec.origin).resolve().parent
            files |= {p for p in package.rglob("*") if p.suffix in _SOURCES}
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.parent.name}/{path.name}\0".encode())
        digest.update(path.read_bytes())
        digest.update(b"\0")
    return digest.hexdigest()


def probe(name: str, timeout_s: float = PROBE_SECONDS, *, anew: bool = False) -> ToolchainState:
    """What a child process found out about one toolchain; asked once per process.

    An earlier process's answer is taken, while what it rests on is as it was, unless ``anew``.
    """
    _check(name)
    with _probing:
        known = _probed.get(name)
    if known is None:
        known = None if anew else recall(name, TOOLCHAINS[name])
        if known is None:
            known = _probe_in_child(name, timeout_s)
        known = msgspec.structs.replace(known, targets=targets_of(name))
        with _probing:
            known = _probed.setdefault(name, known)
    return known


def probe_all(
    names: Sequence[str] | None = None, timeout_s: float = PROBE_SECONDS, *, anew: bool = False
) -> tuple[ToolchainState, ...]:
    """States of the toolchains, in the given order; two children at a time.

    ``anew``: whatever this process or an earlier one found before.
    """
    chosen = tuple(names) if names is not None else all_names()
    for name in chosen:
        _check(name)
    if anew:
        forget_probes()
    pool = ThreadPoolExecutor(max_workers=2)
    try:
        return tuple(pool.map(lambda name: probe(name, timeout_s, anew=anew), chosen))
    except BaseException:  # Ctrl-C: what is being probed is ended, the rest not begun
        pool.shutdown(wait=False, cancel_futures=True)
        with _probing:
            for child in _children:
                _end(child)
        raise
    finally:
        pool.shutdown()


def _check(name: str) -> None:
    if name not in TOOLCHAINS:
        known = ", ".join(TOOLCHAINS)
        raise UsageError(f"unknown toolchain {name!r}; known are {known}")


def forget_probes() -> None:
    """Forget what this process found; what is kept on disk judges itself."""
    with _probing:
        _probed.clear()


def _probe_command(name: str) -> list[str]:
    # -P: what lies in the user's working folder (a checkout named tvm) is none of our modules.
    return [sys.executable, "-P", "-m", "collage_engine.toolchains.registry", name]


def _child_environment() -> dict[str, str]:
    """Ours, and this copy of the project findable from any folder."""
    root = str(Path(__file__).resolve().parents[2])
    before = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": root + (os.pathsep + before if before else "")}


def _probe_in_child(name: str, timeout_s: float) -> ToolchainState:
    before = surroundings(TOOLCHAINS[name])
    # A session of its own: Ctrl-C is ours to handle, and a compiler it started ends with it.
    child = subprocess.Popen(
        _probe_command(name),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=_child_environment(),
        start_new_session=True,
    )
    with _probing:
        _children.add(child)
    try:
        printed, said = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(child)
        child.communicate()
        return _unavailable(name, f"probing it took longer than {timeout_s:g} s")
    finally:
        with _probing:
            _children.discard(child)
    if child.returncode == 0:
        try:
            probed = decode(last_line(printed), Probed)
        except msgspec.DecodeError:
            return _unavailable(name, "its probe printed no state")
        keep(name, probed, before)
        return probed.state
    if child.returncode < 0:
        return _unavailable(name, f"it crashed when loaded (signal {-child.returncode})")
    return _unavailable(name, last_line(said, f"its probe ended with {child.returncode}"))


def _end(child: subprocess.Popen[str]) -> None:
    """Kill a probe and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _unavailable(name: str, reason: str) -> ToolchainState:
    return ToolchainState(name=name, available=False, reason=reason)


def _main(name: str) -> None:
    """Child process: print one toolchain's state, and what it rests on, as a line of JSON."""
    probed = Probed(state=get(name).probe(), files=files_in_use())
    sys.stdout.write("\n" + msgspec.json.encode(probed).decode() + "\n")


if __name__ == "__main__":
    _main(sys.argv[1])
