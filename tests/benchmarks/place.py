"""Models by name, placing them, and tables: what several benchmarks share."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collage_engine.machine.folders import cache_folder
from tests import zoo
from tests.support.command import ROOT, collage

ONCE_PER_MACHINE = ("native", "probes")
"""Folders of the cache that hold no measurements of candidates."""


class PlacingFailed(Exception):
    """``collage place`` ended with an error; the last line of what it said."""


def model_file(name: str, folder: Path) -> Path:
    """The .onnx file of a model given by name or path."""
    if name.endswith(".onnx"):
        return Path(name).resolve()
    if name == "mnist":
        return ROOT / "resources" / "models" / "mnist.onnx"
    path = folder / f"{name}.onnx"
    if not path.exists():
        path.write_bytes(zoo.build(name).SerializeToString(deterministic=True))
    return path


def cache_without_measurements(folder: Path) -> Path:
    """A cache in this folder with an empty store, and what toolchains compile once per machine."""
    cache = folder / "cache"
    for part in ONCE_PER_MACHINE:
        if (cache_folder() / part).is_dir():
            shutil.copytree(cache_folder() / part, cache / part, symlinks=True)
    return cache


def placed(model: Path, out: Path, options: str, own_store: bool = True) -> dict[str, Any]:
    """Place a model, unless that was done before.

    Args:
        model: The .onnx file.
        out: The artifact's folder; what the command printed is kept beside it, as JSON.
        options: Of the command line.
        own_store: From an empty store of measurements.

    Returns:
        The document that ``collage place --json`` printed, with ``command_s``, the seconds of the
        whole command.

    Raises:
        PlacingFailed: The command failed.
    """
    kept = out.with_suffix(".json")
    if not (kept.exists() and out.exists()):
        shutil.rmtree(out, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="placing-") as scratch:
            cache = cache_without_measurements(Path(scratch)) if own_store else None
            began = time.monotonic()
            command = f"place {model} -o {out} --json {options}"
            done = collage(command, cache=cache, timeout=None)
            seconds = time.monotonic() - began
        if done.returncode:
            raise PlacingFailed((done.stderr.strip().splitlines() or ["no message"])[-1])
        kept.write_text(json.dumps(json.loads(done.stdout) | {"command_s": seconds}))
    document: dict[str, Any] = json.loads(kept.read_text())
    return document


def print_head(titles: str) -> None:
    """Print the head of a table in Markdown, of titles with ``|`` between them."""
    print(f"| {titles.replace('|', ' | ')} |\n{'|---' * (titles.count('|') + 1)}|", flush=True)


def print_row(cells: Sequence[object]) -> None:
    """Print a row of a table in Markdown."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
