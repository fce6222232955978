"""Says what a run's reduced precision cost in accuracy and gained in time."""

from __future__ import annotations

from collage_engine.drawing.formatting import counted, significant, time_text
from collage_engine.records.accuracy import Accuracy
from collage_engine.records.placement import Placement, Run
from collage_engine.records.precision import FLOAT32, short
from collage_engine.wording import runs as words


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
        sentences.append(
            words.PRODUCTS_MAY_BE_ROUNDED.format(
                rounded=sum(product.rounded for product in about.products),
                products=counted(len(about.products), "product"),
                trials=counted(len(about.tried), "whole model"),
            )
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
        words.OUTPUT_MOVES.format(
            output=repr(name), moved=f"{moved:.1e}", allowed=f"{about.of(name):.1e}"
        )
        for name, moved in about.noise.items()
    )
    return [words.AMPLIFIES_ROUNDING.format(moves=moves, default=f"{about.default:g}")]


def precision_text(precision: str, max_rel_error: float | None) -> str:
    """Return a partition's precision and own error as a text: ``bf16, error 2.1e-03``."""
    error = "" if max_rel_error is None else f", error {max_rel_error:.1e}"
    return f"{short(precision)}{error}"


def _where(placement: Placement, about: Accuracy) -> str:
    reduced = [part for part in placement.partitions if part.precision != FLOAT32]
    if not reduced:
        # What was not run may be faster.
        ran = about.tried and all(one.max_rel_error is not None for one in about.tried)
        return words.NOTHING_REDUCED_KEEPS if ran else words.ALL_IN_FULL
    worst = max((part.max_rel_error or 0.0 for part in reduced), default=0.0)
    names = ", ".join(dict.fromkeys(short(part.precision) for part in reduced))
    held = sum(part.size for part in reduced)
    return words.SOME_REDUCED.format(
        reduced=len(reduced),
        partitions=counted(len(placement.partitions), "partition"),
        nodes=counted(held, "node"),
        precisions=names,
        error=words.EACH_WITHIN.format(error=f"{worst:.1e}") if worst else "",
    )


def _error(about: Accuracy) -> str:
    tolerance = f"{about.tolerance:g}"
    if about.max_rel_error is None:
        return words.ERROR_NOT_KNOWN.format(tolerance=tolerance)
    return words.ERROR_OF_MODEL.format(
        inputs=inputs_text(about.samples), error=f"{about.max_rel_error:.1e}", tolerance=tolerance
    )


def inputs_text(samples: int) -> str:
    """Return in words on how many sets of inputs outputs were compared."""
    return words.ONE_INPUT if samples == 1 else words.SETS_OF_INPUTS.format(count=samples)


def checked_on(samples: int) -> str:
    """Return an addition to an error that says on how many inputs; empty where it is not known."""
    return words.CHECKED_ON.format(inputs=inputs_text(samples)) if samples else ""


def _gain(about: Accuracy, placement: Placement) -> list[str]:
    ours, full = placement.measured_us, about.float32_us
    if ours is None or full is None or all(p.precision == FLOAT32 for p in placement.partitions):
        return []
    factor = significant(full / ours)
    return [words.REDUCED_GAIN.format(us=time_text(ours), full_us=time_text(full), factor=factor)]
