"""How well runs keep their budgets, from an empty store, as a table.

``python -m tests.benchmarks.budgets [MODEL …] [--budgets 30,120,600] [--threads N] [--cache DIR]``

A model is a name of ``tests.zoo``, an .onnx file, or ``transformer500``, an encoder of some 500
operators. Every run begins with an empty store; what toolchains compile once per machine is there
already. Printed per run: the seconds of the whole command, by how much they miss the budget, when
the first answer was announced, how the run ended and was confirmed, its winner and latency, and the
share of candidates that were left unmeasured for want of time.

A budget is kept when it is missed by at most 15 % or 10 s, whichever is more; a run may end sooner.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

import onnx

from tests.benchmarks.place import PlacingFailed, model_file, placed, print_head, print_row
from tests.zoo.text import bert

MODELS = ("mnist", "se_resnet50", "light_densenet121", "transformer500")
SLACK_SHARE, SLACK_S = 0.15, 10.0
"""By how much a budget may be exceeded: a share of it or seconds, whichever is more."""


def path_of(name: str, folder: Path) -> Path:
    """The .onnx file of a model, made if need be."""
    if name != "transformer500":
        return model_file(name, folder)
    path = folder / "transformer500.onnx"
    if not path.exists():
        onnx.save(bert(layers=14, length=128, hidden=256, heads=4, vocabulary=8000), path)
    return path


def row(model: Path, budget_s: float, threads: int) -> list[object]:
    """Place a model from an empty store, and tell what counts."""
    how = f"--budget {budget_s:.0f}s" + (f" --threads {threads}" if threads else "")
    cells: list[object] = [model.stem, f"{budget_s:.0f}"]
    with tempfile.TemporaryDirectory(prefix="budgets-") as scratch:
        try:
            document = placed(model, Path(scratch) / "out", how)
        except PlacingFailed as failure:
            return [*cells, "–", "**missed**", f"failed: {failure}", *[""] * 5]
    seconds, placement = document["command_s"], document["placement"]
    is_kept = seconds - budget_s <= max(SLACK_S, SLACK_SHARE * budget_s)
    left = document.get("unmeasured") or {"share": 0.0}
    return [
        *cells,
        f"{seconds:.1f}",
        "kept" if is_kept else "**missed**",
        f"{document.get('first_answer_s') or math.nan:.1f}",
        document["ended"],
        document["confirmation"],
        f"{document['winner']}, {len(placement['partitions'])}",
        f"{placement['measured_us'] / 1000:.3g}",
        f"{left['share']:.0%}",
    ]


def main() -> None:
    """Print the table, a row as soon as its run has ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--budgets", default="30,120,600", help="seconds")
    parser.add_argument("--cache", type=Path, help="where models are kept")
    parser.add_argument("--threads", type=int, default=0, help="0: one for each processor")
    options = parser.parse_args()
    folder = options.cache or Path(tempfile.mkdtemp(prefix="budget-models-"))
    folder.mkdir(parents=True, exist_ok=True)
    print_head(
        "model|budget, s|run, s||first answer, s|ended|confirmed|winner, partitions|ms|left out"
    )
    for name in options.models:
        for budget_s in map(float, options.budgets.split(",")):
            print_row(row(path_of(name, folder), budget_s, options.threads))


if __name__ == "__main__":
    main()
