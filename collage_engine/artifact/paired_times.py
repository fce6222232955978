"""The times of two artifacts in common rounds, and whether one is slower by more than is allowed.

Both artifacts are loaded in a process each and timed in turn, in rounds that follow each other at
once, so that a slow stretch of the machine falls on both. Where the memory of a process happens to
lie makes several percent more; therefore a *pair* of processes gives one ratio only, and further
pairs are loaded until the mean of the ratios is known well enough.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from collage_engine.artifact.artifact_run import ArtifactProcess, artifact_process, open_artifact
from collage_engine.artifact.manifest import timed_manifest
from collage_engine.records.answers import CheckOutcome, GateCheck
from collage_engine.support.time_limits import WORK_S

PROCESSES = 3
"""Processes in which equal work is timed to be compared: the fewest whose median is not a mean."""


LEAST_PAIRS, MOST_PAIRS = 5, 30
"""Pairs of processes with which a comparison may end, and with which it does: the first is the
fewest with which the simulation in ``tests/unit/test_gate.py`` keeps false alarms below 2 %. With
14 pairs at most a slowdown of 5 % was a tie in 8 of 35 checks, with 30 in none of 18
(``tests/benchmarks/RESULTS.md``)."""
ROUNDS = 6
"""Rounds of each pair; as many as the race asks for before it judges anybody."""
ROUND_S, LEAST_CALLS = 0.05, 2
"""Seconds of timed calls in a round, and calls at least; as in the race."""
REST_S = 0.1
"""Seconds before a round of an artifact of several threads; those of the other spin up to 60 ms
after a call."""
CONFIDENCE = 0.99
"""Of the interval in which the mean ratio lies. It is looked at after every pair: with 95 % equal
artifacts were called slower in 2.4 of 100 simulated comparisons on a very noisy machine."""


def judge(logs: Sequence[float], max_slower: float) -> CheckOutcome | None:
    """Judge a time by its ratios to another one.

    Args:
        logs: The logarithm of the ratio that each pair of processes gave.
        max_slower: By what share the time may exceed the other.

    Returns:
        The outcome; None: further pairs are needed. A mean is known well enough where the interval
        in which it lies reaches no farther than half of what is allowed to either side, or where
        all of it lies on one side of what is allowed.
    """
    if len(logs) < LEAST_PAIRS:
        return None
    mean, half = _interval(logs)
    allowed = math.log1p(max_slower)
    if half <= allowed / 2 or abs(mean - allowed) > half:
        return "failed" if mean > allowed else "passed"
    return "tie" if len(logs) >= MOST_PAIRS else None


def _interval(logs: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and half the width of Student's interval around it."""
    from scipy.stats import t  # takes half a second to import

    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return statistics.fmean(logs), float(t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1)) * error


def pair_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the logarithm of the median ratio over the common rounds of a pair of processes."""
    return statistics.median(math.log(a / b) for a, b in zip(ours, theirs, strict=True))


def compare_artifacts(
    folder: Path,
    other: Path,
    max_slower: float,
) -> tuple[GateCheck, dict[str, Any]]:
    """Time two artifacts in common rounds, until it is known whether the first is slower.

    Args:
        folder: The artifact that is judged; each is for one shape and single calls.
        other: The one that it is compared with.
        max_slower: By what share its time may exceed the other's.

    Returns:
        The mean of how many times the other's time it takes, over pairs of processes, and whether
        that is allowed; and what ``open_artifact`` said of it where its error was largest.

    Raises:
        ArtifactError: An artifact is damaged, or does not load.
        UsageError: An artifact is for several shapes, or for throughput.
        WorkerError: A process crashed or hung.
    """
    both = folder, other
    outcome, logs = None, []
    pairs = []
    manifests = [timed_manifest(each) for each in both]
    while outcome is None:
        pairs.append(timed_pair(both, manifests))
        logs = [pair_ratio(*rounds) for _, rounds in pairs]
        outcome = judge(logs, max_slower)
    mean, half = _interval(logs)
    us, baseline_us = (
        statistics.median(statistics.median(rounds[number]) for _, rounds in pairs) * 1e6
        for number in range(2)
    )
    latency = GateCheck(
        name="latency",
        outcome=outcome,
        value=math.exp(mean),
        limit=1 + max_slower,
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        pairs=len(logs),
        us=us,
        baseline_us=baseline_us,
    )
    opened = [opened for opened, _ in pairs]
    return latency, max(opened, key=lambda one: (one["wrong"] is not None, one["max_rel_error"]))


def timed_pair(
    folders: tuple[Path, Path], manifests: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], tuple[list[float], list[float]]]:
    """Load two artifacts, each in a new process; return their medians in common rounds, in seconds.

    What ``open_artifact`` said of the first one comes along.
    """
    rest_s = REST_S if any(manifest.get("threads", 1) > 1 for manifest in manifests) else 0.005
    rounds: tuple[list[float], list[float]] = ([], [])
    request = partial(ArtifactProcess.time_calls, seconds=ROUND_S, least=LEAST_CALLS)
    with ExitStack() as processes:
        workers = [processes.enter_context(artifact_process(each)) for each in manifests]
        with ThreadPoolExecutor(2) as pool:
            opened, _ = pool.map(open_artifact, workers, folders)
        for _ in range(ROUNDS):
            for number in random.sample(range(2), 2):
                time.sleep(rest_s)
                taken = workers[number].call(request, WORK_S)
                rounds[number].append(statistics.median(taken))
    return opened, rounds
