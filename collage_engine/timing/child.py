"""The measuring child: its environment, the messages exchanged with it, and its clock.

The parent opens a model (``OpenRequest``), then asks for one group of candidates after the other
(``TimingRequest``) and gets a ``TimingReply`` for each of them.

A program alone on its thread takes as much processor time as wall time. On a busy machine the wall
time also holds what others ran in between; the processor time does not. So the smaller of the two
is what the work takes when the machine is quiet. With more threads they are not comparable, and
the wall time stands.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from collage_engine.lowering.virtual_machine import virtual_machine_environment
from collage_engine.records.candidate import Candidate, Cost
from collage_engine.records.graph import ModelRecord
from collage_engine.records.placement import TIE_SHARE
from collage_engine.records.toolchain import SHORT_SPIN_TURNS


def measuring_environment(toolchains: Iterable[str], threads: int) -> dict[str, str]:
    """Return the environment in which toolchains share a process fairly, as mixes are deployed.

    Libraries read these variables when they load. Thread pools of several runtimes that spin for
    long take the cores away from each other.

    Args:
        toolchains: names of the toolchains that the child loads.
        threads: threads of each of their pools.
    """
    from collage_engine.toolchains.registry import about

    # OpenMP's variables hold for whatever else has a pool in the process, numpy's BLAS among it.
    env = virtual_machine_environment(threads, spin=False) | {"OMP_NUM_THREADS": str(threads)}
    env |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": SHORT_SPIN_TURNS}
    for name in toolchains:
        env |= about(name).variables(threads, spin=False)
    return env


WRONG_NUMBERS = "wrong numbers"
"""How reasons begin that hold for one model's values only, not wherever the key is equal."""


@dataclass(frozen=True)
class OpenRequest:
    """The first request to a child: which model to open."""

    model: ModelRecord
    """Another file under its name must not be measured in its stead."""
    truth_folder: str


@dataclass(frozen=True)
class TimingRequest:
    """Candidates over one set of operators, with different measurement keys."""

    candidates: tuple[Candidate, ...]
    """In this order they are compiled and run by themselves."""
    limit_s: float = math.inf
    """Seconds that a candidate may take to be compiled, to run, and for each sample of its time."""
    ahead: tuple[Candidate, ...] = ()
    """What is measured next, these and later ones: its kernels are compiled at once before."""


TimingReply = tuple[str, Cost]
"""A message on the way: a measurement key, and the cost of the candidate that has it."""


READING_S = 3e-6
"""Seconds that reading the processor time takes (Zen 4, ``python -m timeit -s 'import time'
'time.process_time()'``)."""
FROM_S = READING_S / TIE_SHARE
"""Seconds of a call from which processor time is read beside wall time: in a shorter one, which is
rarely interrupted, reading it would show."""


def timed(call: Callable[[], object], threads: int) -> float:
    """Return the seconds of one call."""

    def wall_s() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return undisturbed(wall_s, threads)


def undisturbed(seconds: Callable[[], float], threads: int) -> float:
    """Return what a function that times itself says, at most the processor time it took for it."""
    if threads != 1:
        return seconds()
    used = time.process_time()
    wall_s = seconds()
    used = time.process_time() - used
    return wall_s if wall_s < FROM_S else min(wall_s, used)
