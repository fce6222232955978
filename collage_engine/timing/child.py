"""The environment of the child process that measures."""

from __future__ import annotations

from collections.abc import Iterable

from collage_engine.lowering.virtual_machine import virtual_machine_environment
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
