"""A candidate's cost is a time with its spread, or invalid, or unknown."""

from __future__ import annotations

from typing import Literal

import msgspec

from collage_engine.support.typed import Count, Figure, Positive

CostState = Literal["measured", "invalid", "unknown"]
InModelSource = Literal["seen", "predicted"]
"""Whether a cost within a model was seen there, or predicted from costs that were."""


class Cost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Time of one call in microseconds, from hot repeats on recorded activations.

    ``median_us``, ``low_us`` (20th percentile) and ``high_us`` (80th) are set when measured. An
    invalid cost is infinite and always carries a ``reason``.
    """

    state: CostState = "unknown"
    median_us: Positive | None = None
    low_us: Figure | None = None
    high_us: Figure | None = None
    count: Count = 0
    max_rel_error: Figure | None = None
    reason: str | None = None
    wrong_numbers: bool = False
    """Whether it is invalid for what it computed on one model's values: another's may be right."""
    measured_at: str | None = None
    """ISO 8601, UTC."""
    from_store: bool = False
    alone_us: Figure | None = None
    """Where the times are those within a whole model (``in_place``): the isolated median; None:
    it was never measured by itself."""
    in_place: Literal["", "seen", "predicted"] = ""
    """Whether the times are those within a whole model, seen there or predicted from what was."""

    @property
    def usable(self) -> bool:
        """Tell whether there is a time."""
        return self.state == "measured"

    @property
    def fault(self) -> str | None:
        """Return why a cost out of a file cannot be used; None: it can."""
        if self.state == "invalid" and not self.reason:
            return "it is invalid without a reason"
        if self.state == "measured" and self.median_us is None:
            return "it is measured without a time"
        return None

    def in_model(self, us: float, source: InModelSource) -> Cost:
        """Return this cost as it is within a whole model.

        Args:
            us: The median within the model, in microseconds.
            source: Whether ``us`` was seen there or predicted.

        Returns:
            A cost with the median ``us`` whose spread is that of the isolated repeats, in
            proportion. An unmeasured cost is returned as it is.
        """
        isolated = self.isolated()
        if isolated.median_us is None:
            return self
        scaled = isolated.scaled(us / isolated.median_us)
        return msgspec.structs.replace(
            scaled, median_us=us, alone_us=isolated.median_us, in_place=source
        )

    def in_model_like(self, known: Cost) -> Cost:
        """Return this isolated cost as one within the model, as an older one of the same work was.

        Args:
            known: The older cost. Where it is one within a model, the ratio of its two medians
                is applied to this cost; where it is not, this cost is returned as it is.
        """
        if not known.in_place or not known.alone_us or not self.usable or self.in_place:
            return self
        factor = (known.median_us or 0.0) / known.alone_us
        return self.in_model((self.median_us or 0.0) * factor, known.in_place)

    def isolated(self) -> Cost:
        """Return this cost as it was measured by itself."""
        if self.alone_us is None or not self.median_us:
            return self
        scaled = self.scaled(self.alone_us / self.median_us)
        return msgspec.structs.replace(scaled, median_us=self.alone_us, alone_us=None, in_place="")

    def scaled(self, factor: float) -> Cost:
        """Return this cost with its times multiplied by a factor."""
        return msgspec.structs.replace(
            self,
            median_us=None if self.median_us is None else self.median_us * factor,
            low_us=None if self.low_us is None else self.low_us * factor,
            high_us=None if self.high_us is None else self.high_us * factor,
        )

    @property
    def us(self) -> float:
        """Return the median in microseconds; infinite when invalid, NaN when unknown."""
        if self.state == "invalid":
            return float("inf")
        return float("nan") if self.median_us is None else self.median_us


UNKNOWN = Cost()
"""The cost of a candidate that was not measured."""


def invalid(reason: str, *, wrong_numbers: bool = False) -> Cost:
    """Return the cost of a candidate that cannot be used, for the reason given."""
    return Cost(state="invalid", reason=reason, wrong_numbers=wrong_numbers)
