"""What a solve of one choice of allowed candidates has found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from collage_engine.search.label_setting import LabelSetting


@dataclass
class Solution:
    """What a solve has found; amounts are internal integers."""

    cost: int | None = None
    """Cost of the best cover; None when there is none (``decided``) or none was found."""
    lower_bound: int = 0
    """No cover costs less."""
    cover: list[int] = field(default_factory=list)
    least_through: dict[int, int] = field(default_factory=dict)
    """Candidate to the exact least cost of a cover through it."""
    lower_bound_through: dict[int, int] = field(default_factory=dict)
    """The candidates whose least cover is only known to cost at least this."""
    others_in_no_cover: bool = False
    """Whether the candidates in neither of the two are proved to be in no cover."""
    states: int = 0
    """Labels kept, or nodes of the branch and bound."""
    decided: bool = True
    """Whether it is known if there is a cover at all."""
    labels: LabelSetting | None = None
    """The labels of all states."""
    ranked_covers: Callable[[int, float], list[tuple[int, list[int]]]] | None = None
    """Where the integer program proved the cover to cost least: returns that many of the best
    covers, or those that it finds until a time, each with its cost."""

    @property
    def optimal(self) -> bool:
        """Return whether the cover is proved to cost least."""
        return self.cost is not None and self.lower_bound >= self.cost
