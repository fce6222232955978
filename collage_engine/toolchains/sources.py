"""Hashes the sources that decide what a toolchain compiles, for measurements' keys."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

SUFFIXES = frozenset({".py", ".cc", ".cpp", ".cu", ".h", ".hpp"})
"""Endings of the files that are sources; whatever else lies in a toolchain's folder decides
nothing."""
_TOOLCHAINS = Path(__file__).resolve().parent


@cache
def source_hash(cls: type) -> str:
    """Return the SHA-256, in hexadecimal, over the sources that decide what a toolchain compiles.

    These are the folder of its class and of every base class that has one of its own (``runtime/``
    for the C++ runtimes), and the modules and packages named in the class attribute ``depends``.
    """
    files: set[Path] = set()
    for base in cls.__mro__:
        module = sys.modules.get(base.__module__)
        file = getattr(module, "__file__", None)
        if file is not None and base.__module__ not in sys.stdlib_module_names:
            files |= _beside(Path(file).resolve(), base.__module__)
    for name in getattr(cls, "depends", ()):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            folders = spec.submodule_search_locations
            origin = Path(spec.origin).resolve()
            files |= {origin} if folders is None else source_files([origin.parent])
    return hash_files(files)


def _beside(file: Path, module: str) -> set[Path]:
    """Return the sources that belong to a class in this file, given its module's dotted name."""
    if file.parent == _TOOLCHAINS:
        return set()  # the contract itself, which every toolchain has
    if "." not in module:
        return {file}  # a module without a package: its neighbours are strangers
    return source_files([file.parent])


def package_files(module: str) -> set[Path]:
    """Return the sources of the top-level package that holds a module, without importing it."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return set()
    if spec is None:
        return set()
    if spec.submodule_search_locations is not None:
        return source_files(Path(folder) for folder in spec.submodule_search_locations)
    return {Path(spec.origin)} if spec.origin else set()


def source_files(folders: Iterable[Path]) -> set[Path]:
    """Return every source in these folders and below them."""
    return {p for folder in folders for p in folder.rglob("*") if p.suffix in SUFFIXES}


def hash_files(files: Iterable[Path]) -> str:
    """Return the SHA-256 over the names (with that of their folder) and the contents of files."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.parent.name}/{path.name}\0".encode())
        digest.update(path.read_bytes())
        digest.update(b"\0")
    return digest.hexdigest()
