"""What a candidate costs: a time with its spread, or invalid, or unknown."""

from __future__ import annotations

from typing import Literal

import msgspec

CostState = Literal["measured", "invalid", "unknown"]


class Cost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Time of one call in microseconds, from hot repeats on recorded activations.

    ``median_us``, ``low_us`` (20th percentile) and ``high_us`` (80th) are set when measured.
    ``cold_us`` is the median with cold weights, where the model's weights exceed the
    last-level cache. An invalid cost is infinite and always carries a ``reason``.
    """

    state: CostState = "unknown"
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    cold_us: float | None = None
    count: int = 0
    repeats_us: tuple[float, ...] = ()
    """The single repeats, for resampling; at most 64 are kept."""
    max_rel_error: float | None = None
    reason: str | None = None
    threads: int | None = None
    measured_at: str | None = None
    """ISO 8601, UTC."""
    fingerprint: str | None = None
    from_store: bool = False

    @property
    def usable(self) -> bool:
        return self.state == "measured"

    def at(self, percentile: int = 50) -> float:
        """Microseconds at a percentile; infinite when invalid, NaN when unknown."""
        if self.state == "invalid":
            return float("inf")
        if self.median_us is None:
            return float("nan")
        if percentile == 50 or not self.repeats_us:
            by_name = {20: self.low_us, 80: self.high_us}
            found = by_name.get(percentile, self.median_us)
            return self.median_us if found is None else found
        ordered = sorted(self.repeats_us)
        place = (len(ordered) - 1) * percentile / 100
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


UNKNOWN = Cost()


def invalid(reason: str) -> Cost:
    return Cost(state="invalid", reason=reason)
