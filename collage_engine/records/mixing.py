"""How much mixing toolchains could win over the best one alone."""

from __future__ import annotations

import msgspec


class MixingBound(msgspec.Struct, frozen=True, kw_only=True):
    """A bound on what mixing could win, by isolated costs.

    It assumes that no candidate runs faster in the model than by itself. What is fused differently
    in the model, or finds its inputs in nearer caches, is not covered by it.
    """

    toolchain: str
    """The toolchain whose best placement by itself costs least."""
    alone_us: float
    """The isolated costs of that placement's partitions, with launches and hand-overs."""
    bound_us: float
    """No mix costs less: the least sum of isolated costs of candidates that hold every operator
    once, where launches, hand-overs and conversions cost nothing and unmeasured candidates are at
    their lower bounds."""
    proves: bool
    """Whether no unmeasured candidate is in that sum: measuring more cannot lower the bound."""

    @property
    def gain(self) -> float:
        """Return the share of the best toolchain's time alone that a mix could save at most."""
        return max(0.0, 1.0 - self.bound_us / self.alone_us) if self.alone_us > 0 else 0.0
