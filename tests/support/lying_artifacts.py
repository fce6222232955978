"""Lists ways in which an artifact's manifest or folder can lie, for loaders and the program."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "COLLAGE_TEST_MARK"
"""The environment variable that names the file which hostile code makes."""
CODE = f"import os; open(os.environ[{MARK!r}], 'w').close()\n"
"""Text of a Python file that must never be run."""

Lie = Callable[[Path, dict[str, Any]], None]


def _set(key: str, value: Any) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        manifest[key] = value

    return lie


def _entry_file(name: str) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        with (folder / name).open("ab") as stream:
            stream.write(b" ")

    return lie


def _beside(name: str) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(CODE)

    return lie


def _changed(folder: Path, manifest: dict[str, Any]) -> None:
    with (folder / "model.so").open("ab") as stream:
        stream.write(b"x")


REFUSED: dict[str, tuple[Lie, str]] = {
    "model.so was changed": (_changed, r"model\.so has changed"),
    "version 1": (_set("format_version", 1), "version"),
}
"""What has to be refused, with a pattern of the sentence."""

REFUSED_ENTRIES: dict[str, tuple[Lie, str]] = {
    "the manifest of a shape was changed": (
        _entry_file("1/manifest.json"),
        r"1/manifest\.json has changed",
    ),
    "the module of a shape was changed": (_entry_file("1/model.so"), r"model\.so has changed"),
}
"""The same of an artifact for two batches (``support.full_documents.two_shapes``)."""

HARMLESS: dict[str, Lie] = {
    "numpy.py beside the loader": _beside("loader/numpy.py"),
    "argparse.py beside the loader": _beside("loader/argparse.py"),
    "tvm.py in the folder": _beside("tvm.py"),
}
"""Changes of an artifact's folder that must have no effect, by name."""


def apply(lie: Lie, folder: Path) -> None:
    """Change an artifact in place."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    lie(folder, manifest)
    path.write_text(json.dumps(manifest))
