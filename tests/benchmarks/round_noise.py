"""How paired differences between equal work follow each other, round by round.

    python -m tests.benchmarks.round_noise [MODEL.onnx …] [--rounds 400]

Two sessions of ONNX Runtime run the same model in alternating order, as two contenders of a
confirmation do. Their times differ by noise alone. Printed for each model: the spread of the paired
differences relative to the time, their kurtosis (3 is a normal distribution's), and the lag-one
correlation of the differences and of their signs about the median. The last one is what
``timing.repeated_looks.SIGN_CORRELATION`` allows for.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np
import onnxruntime

from collage_engine.model.importer import import_model

MNIST = Path(__file__).parents[2] / "resources" / "models" / "mnist.onnx"
ROUND_S = 0.02
"""Seconds of calls in a round; chosen, as short as a confirmation's rounds of small models."""


def differences(path: Path, rounds: int) -> tuple[np.ndarray, float]:
    """Paired differences of two equal sessions, and the median time of a call; seconds."""
    model = import_model(str(path))
    inputs = model.random_inputs(0)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = [onnxruntime.InferenceSession(str(path), options) for _ in range(2)]

    def seconds_of(session: onnxruntime.InferenceSession, calls: int) -> float:
        taken = []
        for _ in range(calls):
            start = time.perf_counter()
            session.run(None, inputs)
            taken.append(time.perf_counter() - start)
        return float(np.median(taken))

    call_s = min(seconds_of(session, 5) for session in sessions)
    calls = max(1, round(ROUND_S / call_s))
    dice = random.Random(0)
    pairs = []
    for _ in range(rounds):
        order = [0, 1] if dice.random() < 0.5 else [1, 0]
        found = {place: seconds_of(sessions[place], calls) for place in order}
        pairs.append((found[0], found[1]))
    times = np.asarray(pairs)
    return times[:, 0] - times[:, 1], float(np.median(times))


def lag_one(values: np.ndarray) -> float:
    """Correlation of each value with the next."""
    return float(np.corrcoef(values[:-1], values[1:])[0, 1])


def main() -> None:
    """Print one row for each model."""
    options = argparse.ArgumentParser()
    options.add_argument("models", nargs="*", type=Path, default=[MNIST])
    options.add_argument("--rounds", type=int, default=400)
    given = options.parse_args()
    print("| model | µs | spread of differences | kurtosis | lag one | lag one of signs |")
    print("|---|---|---|---|---|---|")
    for path in given.models or [MNIST]:
        apart, call_s = differences(path, given.rounds)
        centred = apart - np.median(apart)
        kurtosis = float(np.mean(centred**4) / np.mean(centred**2) ** 2)
        spread = float(np.diff(np.percentile(apart, [20, 80]))[0]) / call_s
        print(
            f"| {path.stem} | {call_s * 1e6:.0f} | {spread:.2%} | {kurtosis:.0f} "
            f"| {lag_one(centred):.2f} | {lag_one(np.sign(centred)):.2f} |"
        )


if __name__ == "__main__":
    main()
