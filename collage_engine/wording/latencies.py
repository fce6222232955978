"""Writes rows of tables: placements and baselines, ways to share processors, and shapes."""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.records.placement import Baseline, DeploymentRow, Placement, Run
from collage_engine.records.shapes import ShapeRow, Sharing
from collage_engine.support.text import counted
from collage_engine.wording.amounts import DASH, bytes_text, gain_text, significant, time_text
from collage_engine.wording.titles import baseline_title, contender_title, toolchain_title

KINDS = {"whole-model": "whole model", "fuseops": "FuseOps", "greedy": "greedy", "user": "yours"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row for one placement, with its end-to-end time."""

    name: str
    kind: str
    timed: Placement | Baseline
    """Its times."""
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
    def us(self) -> float | None:
        """Return its end-to-end time in microseconds."""
        return self.timed.measured_us

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
        tied = "collage" in run.tied
        rows.append(Row(timed=ours, name="Collage", kind=kind, chosen=won, tied=tied))
    rows += [
        Row(
            timed=base,
            # Its kind stands beside its name.
            name=baseline_title(base).removeprefix("greedy " if base.kind == "greedy" else ""),
            kind=KINDS[base.kind],
            reason=base.reason,
            chosen=base.name == run.winner,
            tied=base.name in run.tied,
            barred=base.barred,
            also=tuple(contender_title(name, "fuseops") for name in base.names),
        )
        for base in run.baselines
    ]
    return sorted(rows, key=lambda row: (row.us is None, row.us or 0.0, not row.chosen))


NUMBERS = (
    "instances",
    "threads of each",
    "items per second",
    "time against it",
    "latency",
    "against it",
)
"""Titles of the columns of ``deployment_cells`` and ``shape_cells`` that hold numbers."""


def objective_sentences(run: Run) -> list[str]:
    """Return what the run's times are of; nothing where they are medians of single calls."""
    if run.objective == "p99":
        return ["all times are 99th percentiles of single calls"]
    if run.objective == "throughput":
        measured = run.placement.measured_us if run.placement is not None else None
        text = (
            f"all times are those of {counted(run.streams, 'instance')} at once with "
            f"{counted(run.threads, 'thread')} each, over the calls of all of them"
        )
        if measured:
            text += f", {significant(1e6 / measured)} runs per second"
        return [text]
    return []


def _rate(per_second: float | None) -> str:
    return DASH if per_second is None else significant(per_second)


def _toolchain_cells(row: DeploymentRow | ShapeRow, alone: str) -> dict[str, str]:
    """Return the texts on toolchains: those of the placement, and the best with its figure."""
    return {
        "toolchains": ", ".join(map(toolchain_title, row.toolchains)) or DASH,
        "best single toolchain": f"{toolchain_title(row.best_single)}, {alone}"
        if row.best_single
        else DASH,
    }


def deployment_cells(row: DeploymentRow) -> dict[str, str]:
    """Return the texts of a way to share the processors, by the titles of their columns."""
    gain = DASH
    if row.items_per_s and row.best_single_items_per_s:
        gain = gain_text(1 / row.items_per_s, 1 / row.best_single_items_per_s)
    return {
        "instances": str(row.streams),
        "threads of each": str(row.threads),
        "items per second": _rate(row.items_per_s),
        **_toolchain_cells(row, _rate(row.best_single_items_per_s)),
        "time against it": gain,
    }


def shape_cells(row: ShapeRow) -> dict[str, str]:
    """Return the texts of a shape, by the titles of their columns."""
    return {
        "shape": row.choice.text,
        "latency": time_text(row.latency_us),
        "items per second": _rate(row.items_per_s),
        **_toolchain_cells(row, time_text(row.best_single_us)),
        "against it": gain_text(row.latency_us, row.best_single_us),
    }


def sharing_sentences(shapes: int, sharing: Sharing | None) -> list[str]:
    """Return what the entries of an artifact share, and what runs other shapes.

    Args:
        shapes: How many shapes it has.
        sharing: What is known of it; None: nothing.
    """
    if sharing is None:
        return []
    said = []
    if sharing.apart_bytes and shapes > 1:
        said.append(
            f"the files of {shapes} shapes take {bytes_text(sharing.bytes)} together; apart they "
            f"would take {bytes_text(sharing.apart_bytes)}"
        )
    if sharing.padded:
        said.append(
            f"from Python, inputs of a smaller {sharing.padded} are padded to the next larger "
            "shape where that pays"
        )
    if sharing.others:
        said.append(
            f"any other shape runs the model's own file on {toolchain_title(sharing.others)}"
        )
    return said
