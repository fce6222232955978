"""Models that TVM's importer cannot read as a whole, placed with the command line, as a table.

    python -m tests.benchmarks.every_kind FOLDER [--budget 60] [--threads 1] [MODEL …]

The models are those of ``MODELS``: recurrent, of open sizes, with control flow, with operators of
another domain, with weights of few bits. Each is placed from an empty store. The table says what it
holds, on which toolchains it was placed, how long a call takes beside the fastest toolchain alone,
how both were confirmed, and the error of the whole model as the loader that the artifact carries
finds it on the sample.

It takes at most the budget for each model: 8 minutes with the default. What is in FOLDER already
is not done again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto

from tests import zoo
from tests.benchmarks.place import PlacingFailed, placed, print_head, print_row
from tests.zoo.few_bits import float8_weights, int4_weights

MODELS: dict[str, tuple[Callable[[], ModelProto], str]] = {
    "LSTM tagger, 24 tokens": (partial(zoo.build, "tagger", steps=24), ""),
    "LSTM tagger, 200 tokens": (partial(zoo.build, "tagger", steps=200), ""),
    "detector with NMS": (partial(zoo.build, "detector"), ""),
    "If and Loop": (partial(zoo.build, "control_flow"), ""),
    "com.microsoft": (partial(zoo.build, "contrib"), ""),
    "int8, QDQ": (partial(zoo.build, "qdq"), "--precision int8"),
    "int4 weights": (int4_weights, ""),
    "float8 weights": (float8_weights, ""),
}
"""Name → maker of the model, and options of ``collage place``."""
MOST_KINDS = 6
"""Operators that a row names; chosen."""


def place(name: str, folder: Path, budget_s: float, threads: int) -> dict[str, Any]:
    """Place a model, run the artifact's own loader, and return the document with its error."""
    short = "".join(c if c.isalnum() else "-" for c in name)
    model, out = folder / f"{short}.onnx", folder / f"{short}-out"
    make, options = MODELS[name]
    onnx.save(make(), model)
    try:
        found = placed(model, out, f"--threads {threads} --budget {budget_s:g}s {options}")
    except PlacingFailed as failure:
        return {"failed": str(failure)}
    loader = [sys.executable, str(out / "loader" / "run_artifact.py"), str(out), "--json"]
    ran = subprocess.run(loader, capture_output=True, text=True)
    found["loader"] = json.loads(ran.stdout) if ran.returncode == 0 else {"failed": ran.stderr}
    return found


def kinds(model: ModelProto) -> str:
    """The operators of a model, the most frequent first."""
    counted = Counter(node.op_type for node in model.graph.node if node.op_type != "Constant")
    shown = [f"{n} {kind}" if n > 1 else kind for kind, n in counted.most_common(MOST_KINDS)]
    left = len(counted) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")


def row(name: str, found: dict[str, Any]) -> list[str]:
    """The line of the table of a model."""
    cells = [name, kinds(MODELS[name][0]())]
    if "failed" in found:
        return [*cells, found["failed"], *["–"] * 4]
    placement = found["placement"]
    on = Counter(part["toolchain"] for part in placement["partitions"])
    names = ", ".join(f"{n} {toolchain}" if n > 1 else toolchain for toolchain, n in on.items())
    single = [
        base
        for base in found["baselines"]
        if base["name"] != "collage" and base["measured_us"] and not base["barred"]
    ]
    best = min(single, key=lambda base: base["measured_us"], default=None)
    loader = found["loader"]
    error = loader.get("max_rel_error")
    return [
        *cells,
        names,
        f"{placement['measured_us']:.1f} µs",
        f"{best['name']} {best['measured_us']:.1f} µs" if best else "–",
        found["confirmation"],
        f"{error:.1e}" if error is not None else str(loader)[:80],
    ]


def main() -> None:
    """Place each model and print its line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where models, artifacts and results are kept")
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each model")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_intermixed_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    print_head("model|operators|placed on|a call|fastest alone|confirmed|error")
    for name in options.models:
        print_row(row(name, place(name, folder, options.budget, options.threads)))


if __name__ == "__main__":
    main()
