"""Holds what can be tuned, and what tuning found, as plain data."""

from __future__ import annotations

from typing import Any

import msgspec

from collage_engine.support.typed import Count, Figure


class TuneTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kernel, or the main part of one, that a toolchain can tune."""

    workload: str
    """Equal for equal work, in every model and process."""
    description: dict[str, Any] = {}
    """What the tuner needs to make the work again."""
    schedule: str = ""
    """What writes the kernel untuned."""
    weight: float = 1.0
    """Its share of its candidate's time, roughly, in any unit."""


class TuneRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of tuning one workload so far; kept in the measurement store."""

    workload: str
    toolchain: str
    choice: dict[str, Any] = {}
    """What the toolchain shall do instead of its default; empty: nothing better was found."""
    default_us: float | None = None
    tuned_us: float | None = None
    """Both of the bare kernel, in rounds of their own after the search."""
    tried: tuple[str, ...] = ()
    """Names of what was compared; a resumed search leaves them out."""
    failed: tuple[str, ...] = ()
    """Those that crashed, hung or gave wrong numbers."""
    complete: bool = False
    """Nothing is left that promises a gain."""
    seconds: float = 0.0
    reason: str | None = None
    """Why it could not be tuned, where it could not."""

    @property
    def gain(self) -> float:
        """Returns the share of the default's time that the choice saves."""
        if not self.choice or not self.default_us or self.tuned_us is None:
            return 0.0
        return max(0.0, 1.0 - self.tuned_us / self.default_us)


class TuneCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the tuning stage did; part of the run document."""

    workloads: Count = 0
    """Distinct kernels of candidates that could still change the answer."""
    tuned: Count = 0
    """Searched in this run."""
    from_store: Count = 0
    """Whose search an earlier run had completed."""
    improved: Count = 0
    """For which something better than the default is known."""
    tried: Count = 0
    """Kernels compiled and compared in this run."""
    candidates: Count = 0
    """Offered beside their untuned selves."""
    seconds: Figure = 0.0
