"""An artifact for several shapes beside the artifacts that are made for each shape alone.

    python -m tests.benchmarks.shapes FOLDER [--budget 60] [--threads 1] [--rounds 60] [MODEL …]

A model is a name of ``tests.benchmarks.open_models``; by default MobileNetV2 is placed at batch 1,
4 and 16, and BERT-Small at 32, 128 and 512 tokens. Each shape is placed alone with the budget, and
all N shapes of a model in one command with N times the budget, from empty stores of measurements.
At each shape its entry of the artifact for several shapes and the artifact for it alone take turns,
each in a process of its own. It takes 2·N·budget seconds a model, and half a minute to compare each
shape. What is placed in FOLDER already is not placed again.

The table says for each shape the median time of a call of each artifact, the median of the paired
ratios (above 1: several shapes in one artifact are slower) with its 95 % interval, and the verdict
on ``MOST_SLOWER``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import onnx

from collage_engine.artifact.loader.run_artifact import shapes_of
from collage_engine.artifact.manifest import read_manifest
from tests.benchmarks.open_models import MODELS
from tests.benchmarks.peers_run import Peer, artifact_spec
from tests.benchmarks.peers_stats import paired_ratio
from tests.benchmarks.place import placed, print_head, print_row

SHAPES = {"mobilenet_v2": ("batch", (1, 4, 16)), "bert_small": ("sequence", (32, 128, 512))}
"""Model → the dimension that it names, and the sizes at which it is placed: a batch of
images, and a number of tokens."""
MOST_SLOWER = 1.03
"""The time of a call in the artifact for several shapes over that in the artifact for one, at most;
what is promised."""
ROUND_S = 0.1
"""Seconds of calls of one artifact in a round, so that a round is over before the machine's speed
has changed."""


def entry_for(several: Path, alone: Path) -> Path:
    """The folder of the entry of an artifact for several shapes that has the shapes of another."""
    wanted = shapes_of(read_manifest(alone))
    folders = [several / entry["folder"] for entry in read_manifest(several)["entries"]]
    return next(folder for folder in folders if shapes_of(read_manifest(folder)) == wanted)


def compare(entry: Path, alone: Path, rounds: int) -> list[str]:
    """Let both take turns; the cells that say what came of it."""
    times: dict[Path, list[float]] = {entry: [], alone: []}
    with tempfile.TemporaryDirectory() as scratch:
        peers = {folder: Peer(artifact_spec(folder), Path(scratch)) for folder in times}
        try:
            for number in range(rounds):
                for folder in times if number % 2 else reversed(times):
                    times[folder].append(peers[folder].round(ROUND_S / 5, ROUND_S)[0])
        finally:
            for peer in peers.values():
                peer.close()
    ratio = paired_ratio(times[entry], times[alone])
    assert ratio is not None
    verdict = "kept" if ratio.high <= MOST_SLOWER else "not decided"
    return [
        *(f"{statistics.median(some) / 1000:.3f}" for some in times.values()),
        f"{ratio.middle:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]",
        "missed" if ratio.low > MOST_SLOWER else verdict,
    ]


def main() -> None:
    """Place, compare, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where models and artifacts are kept")
    parser.add_argument("models", nargs="*", default=list(SHAPES))
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each shape")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_intermixed_args()
    print_head("model|shape|several, ms|alone, ms|ratio|verdict")
    for name in options.models:
        folder = options.folder.absolute() / name
        folder.mkdir(parents=True, exist_ok=True)
        model = folder / "model.onnx"
        onnx.save(MODELS[name](), model)
        dim, sizes = SHAPES[name]
        threads = f"--threads {options.threads}"
        every = f"--dim {dim}={','.join(map(str, sizes))}"
        several = folder / "several"
        placed(model, several, f"{every} {threads} --budget {len(sizes) * options.budget:g}s")
        for size in sizes:
            alone = folder / f"alone-{size}"
            placed(model, alone, f"--dim {dim}={size} {threads} --budget {options.budget:g}s")
            cells = compare(entry_for(several, alone), alone, options.rounds)
            print_row([name, f"{dim}={size}", *cells])


if __name__ == "__main__":
    main()
