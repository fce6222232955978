"""Lists Collage's placement and every baseline side by side, as tables and bars show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collage_engine.records.placement import Baseline, Placement, Run
from collage_engine.support.text import counted
from collage_engine.wording.amounts import gain_text
from collage_engine.wording.titles import baseline_title, contender_title

KINDS = {"whole-model": "whole model", "fuseops": "FuseOps", "greedy": "greedy", "user": "yours"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row for one placement, with its end-to-end time."""

    name: str
    kind: str
    us: float | None
    spread_us: tuple[float, float] | None
    estimated_us: float | None
    reason: str | None = None
    """A sentence on why the placement has no time, where it has none."""
    chosen: bool = False
    tied: bool = False
    """Whether the placement is as fast as the winner, as far as the rounds can tell."""
    barred: str | None = None
    """The pins or deployment constraints that the placement breaks; None where it breaks none."""
    also: tuple[str, ...] = ()
    """Other baselines that are the same placement."""

    @property
    def about(self) -> str:
        """Return its kind, and what else is to be known of it: ``greedy, not allowed``."""
        more = f" and {len(self.also) - 1} more" if len(self.also) > 1 else ""
        notes = [f"also {self.also[0]}{more}"] if self.also else []
        notes += ["not allowed"] * bool(self.barred)
        return ", ".join([self.kind, *notes])

    def against(self, reference_us: float | None) -> str:
        """Return by how much it is slower or faster than the chosen placement, as tables show it.

        That is a percentage, and "tied" where the rounds do not tell the two apart: a percentage of
        medians beside a tie would say that they do.

        Args:
            reference_us: What the chosen placement takes, in microseconds.
        """
        if self.chosen:
            return ""
        return "tied" if self.tied else gain_text(self.us, reference_us)


def latency_rows(run: Run) -> list[Row]:
    """List Collage and its baselines, fastest first, those without a time last."""
    rows = []
    ours = run.best_found()
    if ours is not None:
        kind, won = counted(len(ours.partitions), "partition"), run.winner == "collage"
        rows.append(_row(ours, "Collage", kind, chosen=won, tied="collage" in run.tied))
    rows += [
        _row(
            base,
            baseline_name(base),
            KINDS[base.kind],
            reason=base.reason,
            chosen=base.name == run.winner,
            tied=base.name in run.tied,
            barred=base.barred,
            also=tuple(contender_title(name, "fuseops") for name in base.names),
        )
        for base in run.baselines
    ]
    return sorted(rows, key=lambda row: (row.us is None, row.us or 0.0, not row.chosen))


def _row(timed: Placement | Baseline, name: str, kind: str, **more: Any) -> Row:
    """Return the row of what was timed, with other fields."""
    return Row(
        name=name,
        kind=kind,
        us=timed.measured_us,
        spread_us=timed.spread_us,
        estimated_us=timed.estimated_us,
        **more,
    )


def baseline_name(base: Baseline) -> str:
    """Return a baseline's name beside its kind: without the kind where that stands in the name."""
    title = baseline_title(base)
    return title.removeprefix("greedy ") if base.kind == "greedy" else title
