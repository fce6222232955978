"""What memory a placement takes, measured in the child that confirmed it."""

from __future__ import annotations

import msgspec


class MemorySeen(msgspec.Struct, frozen=True, kw_only=True):
    """Resident sizes of the process that ran a placement, in bytes; None where not known."""

    peak_bytes: int | None = None
    """The largest so far, while loading or running."""
    base_bytes: int | None = None
    """Before the module was loaded: Python, TVM's runtime, the sample."""
    loaded_bytes: int | None = None
    """With everything loaded and run once."""
    private_bytes: int | None = None
    """Of ``loaded_bytes`` what no file stands behind: pages of libraries and of ``model.so`` can
    be dropped and read again, these cannot."""
    load_peak_bytes: int | None = None
    """The largest while loading, the first run included."""
    run_peak_bytes: int | None = None
    """The largest since then."""
    held: dict[str, int] = {}
    """Toolchain → bytes of weights its modules hold in memory, packed as they compute with them."""


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory and size of a placement."""

    seen: MemorySeen
    weights_bytes: int = 0
    """Of the model."""
    stored: dict[str, int] = {}
    """Toolchain → bytes of weights its partitions were given."""
    repeated_bytes: int = 0
    """Weights that the artifact holds once more because a second partition reads them, too."""
    artifact_bytes: int | None = None
    """All files of the artifact."""
    library_bytes: int = 0
    """Of them the runtime libraries."""

    def sentence(self) -> str:
        """``312 MB at most while loading, 180 MB while running (95 MB before) …``"""
        seen, parts = self.seen, []
        if seen.load_peak_bytes is not None and seen.run_peak_bytes is not None:
            parts.append(
                f"at most {_mb(seen.load_peak_bytes)} while loading, "
                f"{_mb(seen.run_peak_bytes)} while running"
            )
        elif seen.peak_bytes is not None:
            parts.append(f"at most {_mb(seen.peak_bytes)}")
        if seen.base_bytes is not None:
            parts.append(f"{_mb(seen.base_bytes)} of it before the model is loaded")
        parts.append(f"weights {_mb(self.weights_bytes)}")
        if seen.held:
            held = ", ".join(f"{name} {_mb(size)}" for name, size in seen.held.items())
            parts.append(f"packed: {held}")
        if self.repeated_bytes:
            parts.append(f"{_mb(self.repeated_bytes)} of weights stored for two partitions")
        if self.artifact_bytes is not None:
            parts.append(
                f"artifact {_mb(self.artifact_bytes)}, of it runtimes {_mb(self.library_bytes)}"
            )
        return "; ".join(parts)


def _mb(size: int) -> str:
    mb = size / 1e6
    return f"{mb:.0f} MB" if mb >= 10 else f"{mb:.1f} MB"
