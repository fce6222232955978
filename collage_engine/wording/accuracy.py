"""Says how far outputs are, and may be, from the true ones."""

from __future__ import annotations

from collage_engine.records.placement import Run
from collage_engine.records.precision import short


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


def inputs_text(samples: int) -> str:
    """Return in words on how many sets of inputs outputs were compared."""
    return "one input only" if samples == 1 else f"{samples} sets of inputs"


def checked_on(samples: int) -> str:
    """Return an addition to an error that says on how many inputs; empty where it is not known."""
    return f", checked on {inputs_text(samples)}" if samples else ""
