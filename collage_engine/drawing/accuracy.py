"""Says what a run's reduced precision cost in accuracy and gained in time."""

from __future__ import annotations

from collage_engine.drawing.formatting import counted, significant, time_text
from collage_engine.records.accuracy import Accuracy
from collage_engine.records.placement import Placement, Run
from collage_engine.records.precision import FLOAT32, short


def accuracy_sentences(run: Run) -> list[str]:
    """Say what reduced precision cost and gained.

    Args:
        run: A run.

    Returns:
        Clauses without a final period; none for a run without a tolerance.
    """
    about, placement = run.accuracy, run.placement
    if about is None or placement is None:
        return []
    sentences = [_where(placement), _error(about)]
    first = about.tried[0] if about.tried else None
    if first is not None and (first.max_rel_error or 0.0) > about.tolerance:
        sentences.append(
            f"the fastest placement of all, estimated at {time_text(first.estimated_us)}, has an "
            f"error of {first.max_rel_error:.1e}, beyond the tolerance; "
            f"{counted(len(about.tried), 'placement')} were run for their error"
        )
    sentences += _gain(about, placement)
    return sentences


def tolerance_sentences(run: Run) -> list[str]:
    """Say how far outputs may be from the true ones, where the model's rounding decides on it.

    Args:
        run: A run.

    Returns:
        Clauses without a final period; none for a run whose precision or user decides on it.
    """
    about = run.tolerance
    if about is None or about.source != "rounding":
        return []
    moves = "; ".join(
        f"{name!r} by {moved:.1e}, so that an error of {about.of(name):.1e} is allowed there"
        for name, moved in about.noise.items()
    )
    return [
        "the model amplifies rounding: when inputs and weights change in the last bit, outputs "
        f"move ({moves}; {about.default:g} is allowed without)"
    ]


def precision_text(precision: str, max_rel_error: float | None) -> str:
    """A partition's precision and the error of the partition by itself: ``bf16, error 2.1e-03``."""
    error = "" if max_rel_error is None else f", error {max_rel_error:.1e}"
    return f"{short(precision)}{error}"


def _where(placement: Placement) -> str:
    reduced = [part for part in placement.partitions if part.precision != FLOAT32]
    if not reduced:
        return "precision: every partition computes as the model says, none in less"
    worst = max((part.max_rel_error or 0.0 for part in reduced), default=0.0)
    names = ", ".join(dict.fromkeys(short(part.precision) for part in reduced))
    held = sum(len(part.nodes) for part in reduced)
    error = f", each by itself within {worst:.1e}" if worst else ""
    return (
        f"precision: {len(reduced)} of {counted(len(placement.partitions), 'partition')} "
        f"({counted(held, 'node')}) in {names}{error}"
    )


def _error(about: Accuracy) -> str:
    inputs = "the given inputs" if about.samples == 1 else f"{about.samples} sets of inputs"
    if about.max_rel_error is None:
        return f"accuracy: not known; tolerance {about.tolerance:g}"
    error = f"{about.max_rel_error:.1e}"
    return (
        f"accuracy: the whole model's largest error on {inputs} is {error}, the tolerance "
        f"{about.tolerance:g}"
    )


def _gain(about: Accuracy, placement: Placement) -> list[str]:
    ours, full = placement.measured_us, about.float32_us
    if ours is None or full is None or all(p.precision == FLOAT32 for p in placement.partitions):
        return []
    return [
        f"won: {time_text(ours)} against {time_text(full)} of the best placement without it, "
        f"{significant(full / ours)} times as fast"
    ]
