"""The tables of tuned kernels that a run's placement is lowered with, kept with the run.

The machine's own tables grow with every model that is tuned; an artifact that is exported again
must hold the kernels that were measured, also on another machine or with an emptied cache.
"""

from __future__ import annotations

from typing import Any

from collage_engine.records.placement import Placement, Run
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.capabilities import Tunes
from collage_engine.toolchains.registry import get


def tables_of(placement: Placement | None) -> dict[str, dict[str, Any]]:
    """Return the tuned tables of a placement's partitions, by their hash."""
    parts = placement.partitions if placement is not None else ()
    found: dict[str, dict[str, Any]] = {}
    for name, digest in dict.fromkeys((p.toolchain, p.tuning) for p in parts if p.tuning):
        toolchain = get(name)
        if isinstance(toolchain, Tunes):
            found[digest] = toolchain.tuner().kept(digest)
    return found


def put_tables_back(run: Run) -> None:
    """Write the run's tables where the toolchains look for them.

    Raises:
        ToolchainError: A table is not what its hash says: the session was changed.
    """
    parts = run.placement.partitions if run.placement is not None else ()
    for name, digest in dict.fromkeys((p.toolchain, p.tuning) for p in parts if p.tuning):
        toolchain, table = get(name), run.tables.get(digest)
        if table is None or not isinstance(toolchain, Tunes):
            continue
        if toolchain.tuner().keep(table) != digest:
            raise ToolchainError(
                f"the tuned kernels {digest} of run {run.id} were changed in the session: "
                "place the model again"
            )
