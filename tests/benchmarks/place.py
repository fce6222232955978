"""Models by name, placing them, and tables: what several benchmarks share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import zoo
from tests.support.command import ROOT, collage


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


def placed(model: Path, out: Path, options: str) -> dict[str, Any]:
    """Place a model, unless that was done before.

    Args:
        model: The .onnx file.
        out: The artifact's folder; what the command printed is kept beside it, as JSON.
        options: Of the command line.

    Returns:
        The document that ``collage place --json`` printed.

    Raises:
        PlacingFailed: The command failed.
    """
    kept = out.with_suffix(".json")
    if not (kept.exists() and out.exists()):
        shutil.rmtree(out, ignore_errors=True)
        done = collage(f"place {model} -o {out} --json {options}", timeout=None)
        if done.returncode:
            raise PlacingFailed((done.stderr.strip().splitlines() or ["no message"])[-1])
        kept.write_text(done.stdout)
    document: dict[str, Any] = json.loads(kept.read_text())
    return document


def print_head(titles: str) -> None:
    """Print the head of a table in Markdown, of titles with ``|`` between them."""
    print(f"| {titles.replace('|', ' | ')} |\n{'|---' * (titles.count('|') + 1)}|", flush=True)


def print_row(cells: Sequence[object]) -> None:
    """Print a row of a table in Markdown."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
