"""Finds out, in a process of its own, where padding an artifact's inputs changes no result.

python -m collage_engine.artifact.padding FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from collage_engine.artifact.loader import entries as entry_files
from collage_engine.artifact.loader.run_artifact import compare, load, read_npz


def check_padding(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Finds the dimensions of the inputs that can be padded without changing any result.

    Each entry's sample is padded to the next larger entry along one dimension, run there and
    compared with its own sample's outputs.

    Returns:
        (padding, refused): as the manifest has it, and why not for the other dimensions.
    """
    model = load(folder, huge_pages=False, samples=True)
    entries = model.entries
    padding: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for dim in entries[0]["dims"]:
        if not all(dim in entry["dims"] for entry in entries):
            refused[dim] = "not every shape was named by its size"
            continue
        axes: dict[str, Any] = {
            kind: entry_files.axes_of(entries, dim, kind) for kind in ("inputs", "outputs")
        }
        pairs = entry_files.neighbours(entries, dim)
        odd = entry_files.unexplained_axis(entries, "outputs")
        if not pairs or not axes["inputs"]:
            refused[dim] = "no two shapes differ in it alone"
            continue
        if axes["outputs"] is None or odd is not None:
            where = f"axis {odd[1]} of the output {odd[0]!r}" if odd else "an output's axis"
            refused[dim] = f"{where} follows no single dimension"
            continue
        about = {
            kind: [[name, axis] for name, along in found.items() for axis in along]
            for kind, found in axes.items()
        }
        worst, tolerance = 0.0, min(entry["tolerance"] for entry in entries)
        for small, large in pairs:
            kinds = model.model(small).kinds("inputs", "outputs")
            inputs, outputs = (
                read_npz(Path(folder) / name, kinds)
                for name in entry_files.sample_files(entries[small])
            )
            wider = entry_files.padded(inputs, entries[large])
            found = model.model(large)(wider)
            size = entries[small]["dims"][dim]
            kept = entry_files.cut(found, entries[large], {dim: size}, {dim: about})
            truth = [outputs[each["name"]] for each in entries[small]["outputs"]]
            worst = max(worst, compare(kept, truth)[1])
        if worst <= tolerance:
            padding[dim] = {**about, "max_rel_error": worst}
        else:
            refused[dim] = (
                f"padding changes the results by {worst:.2g}, which is above {tolerance:.2g}"
            )
    return padding, refused


if __name__ == "__main__":
    print(json.dumps(check_padding(Path(sys.argv[1]))))
