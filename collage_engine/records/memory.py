"""The memory that a placement takes is measured in the child that confirmed it."""

from __future__ import annotations

import msgspec

from collage_engine.support.typed import Count


class MemorySeen(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of the process that ran a placement, in bytes; None where they are not known."""

    peak_bytes: Count | None = None
    """The largest so far, while loading or running."""
    base_bytes: Count | None = None
    """Before the module was loaded: Python, TVM's runtime, the sample."""
    load_peak_bytes: Count | None = None
    """The largest while loading, the first run included."""
    run_peak_bytes: Count | None = None
    """The largest since then."""

    @property
    def running_bytes(self) -> int | None:
        """Return what a limit on memory counts: the peak while running, or else the peak so far."""
        return self.run_peak_bytes or self.peak_bytes


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that a placement takes, and the sizes of its files."""

    seen: MemorySeen
    weights_bytes: Count = 0
    """Of the model."""
    stored: dict[str, Count] = {}
    """Toolchain → bytes of weights its partitions were given."""
    repeated_bytes: Count = 0
    """Weights that the artifact holds once more because a second partition reads them, too."""
    artifact_bytes: Count | None = None
    """All files of the artifact."""
    library_bytes: Count = 0
    """Of them the runtime libraries."""
    place_peak_bytes: Count | None = None
    """The largest of all processes of the run together, which no file stands behind."""
