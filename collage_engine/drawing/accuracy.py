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
    sentences = [_where(placement, about), _error(about)]
    if about.products:
        rounded = sum(product.rounded for product in about.products)
        sentences.append(
            f"rounding: {rounded} of {counted(len(about.products), 'product')} may be rounded "
            f"within the tolerance; {counted(len(about.tried), 'whole model')} tried with some of "
            "them rounded, or all"
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
        (
            "the model amplifies rounding: when inputs and weights change in the last bit, outputs "
            f"move ({moves}; otherwise {about.default:g} is allowed)"
        )
    ]


def precision_text(precision: str, max_rel_error: float | None) -> str:
    """Return a partition's precision and own error as a text: ``bf16, error 2.1e-03``."""
    error = "" if max_rel_error is None else f", error {max_rel_error:.1e}"
    return f"{short(precision)}{error}"


def _where(placement: Placement, about: Accuracy) -> str:
    reduced = [part for part in placement.partitions if part.precision != FLOAT32]
    if not reduced:
        # What was not run may be faster.
        ran = about.tried and all(one.max_rel_error is not None for one in about.tried)
        return (
            (
                "precision: every partition computes as the model says; nothing faster in less "
                "keeps the tolerance"
            )
            if ran
            else "precision: every partition computes as the model says, none in less"
        )
    worst = max((part.max_rel_error or 0.0 for part in reduced), default=0.0)
    names = ", ".join(dict.fromkeys(short(part.precision) for part in reduced))
    held = sum(part.size for part in reduced)
    error = f", each by itself within {worst:.1e}" if worst else ""
    return (
        f"precision: {len(reduced)} of {counted(len(placement.partitions), 'partition')} "
        f"({counted(held, 'node')}) in {names}{error}"
    )


def _error(about: Accuracy) -> str:
    tolerance = f"{about.tolerance:g}"
    if about.max_rel_error is None:
        return f"accuracy: not known; tolerance {tolerance}"
    return (
        f"accuracy: the whole model's largest error on {inputs_text(about.samples)} is "
        f"{about.max_rel_error:.1e}, the tolerance {tolerance}"
    )


def inputs_text(samples: int) -> str:
    """Return in words on how many sets of inputs outputs were compared."""
    return "one input only" if samples == 1 else f"{samples} sets of inputs"


def checked_on(samples: int) -> str:
    """Return an addition to an error that says on how many inputs; empty where it is not known."""
    return f", checked on {inputs_text(samples)}" if samples else ""


def _gain(about: Accuracy, placement: Placement) -> list[str]:
    ours, full = placement.measured_us, about.float32_us
    if ours is None or full is None or all(p.precision == FLOAT32 for p in placement.partitions):
        return []
    factor = significant(full / ours)
    return [
        (
            f"gain: {time_text(ours)} against {time_text(full)} of the best placement without "
            f"reduced precision, {factor} times as fast"
        )
    ]
