"""TVM's virtual machine, which runs every placement whatever its toolchains are."""

from __future__ import annotations

from collage_engine.records.toolchain import SHORT_SPIN_TURNS

VIRTUAL_MACHINE = "virtual machine"
"""To whom a library is accounted that the virtual machine itself needs."""


def virtual_machine_environment(threads: int, spin: bool) -> dict[str, str]:
    """Return the environment variables that TVM's runtime reads when its thread pool starts.

    Args:
        threads: How many threads the pool has; they are not bound to processors.
        spin: Whether idle ones may spin as long as they do by themselves.
    """
    chosen = {"TVM_NUM_THREADS": str(threads), "TVM_BIND_THREADS": "0"}
    if not spin:
        chosen["TVM_THREAD_POOL_SPIN_COUNT"] = SHORT_SPIN_TURNS
    return chosen
