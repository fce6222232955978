"""Chooses the shapes to place from a log of calls, which ``patch.py`` writes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from collage_engine.records.placement import TIE_SHARE
from collage_engine.records.shapes import ShapeChoice
from collage_engine.support.errors import UsageError
from collage_engine.support.typed import Count, Positive, decode

EXPECTED = 0.84
"""Share of a call's time that it takes when its shape is placed: the geometric mean of the table
"Against other runtimes" in ``tests/benchmarks/RESULTS.md`` at one thread."""
MOST_CHOSEN = 8
"""Shapes that a log may choose; chosen: they share the budget, ten minutes by default."""


class LoggedCall(msgspec.Struct, frozen=True):
    """A line of the log."""

    model: str
    """The SHA-256 of the model's file."""
    us: Positive
    dims: dict[str, Count] = {}
    shapes: dict[str, tuple[Count, ...]] = {}
    """Sizes of inputs that have an open one without a name."""


class LoggedShape(NamedTuple):
    """The calls of one shape."""

    choice: ShapeChoice
    calls: int
    us: float
    """Their median: first calls take longer."""


def read_calls(path: str, digest: str) -> tuple[LoggedShape, ...]:
    """Return the calls of a model that a log holds, by their shapes.

    Args:
        path: The log.
        digest: The SHA-256 of the model's file.

    Raises:
        UsageError: It is no such log, or holds no call of the model with an open size.
    """
    option = f"--from-calls {path}"
    times: dict[str, tuple[ShapeChoice, list[float]]] = {}
    number = 0
    try:
        with Path(path).open("rb") as stream:
            for line in stream:
                number += 1
                call = decode(line, LoggedCall)
                choice = ShapeChoice(dims=call.dims, shapes=call.shapes)
                if call.model == digest and choice.text:
                    times.setdefault(choice.text, (choice, []))[1].append(call.us)
    except OSError as error:
        raise UsageError(f"{option}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{option}: line {number} is no call: {error}") from error
    if not times:
        raise UsageError(f"{option} holds no call of this model with a size that it leaves open")
    return tuple(LoggedShape(of, len(us), median(us)) for of, us in times.values())


def choose(
    logged: Sequence[LoggedShape], batch: str | None, most: int = MOST_CHOSEN
) -> tuple[ShapeChoice, ...]:
    """Return the shapes whose placements save most of the log's time, one after the other.

    A call whose shape is placed is expected to take ``EXPECTED`` of its time, one that is padded
    that of the larger shape, and any other one its own. A shape that came once may never come
    again: it is chosen only where no shape serves several calls.

    Args:
        logged: What was called.
        batch: The dimension of which fewer rows may be padded, if there is one.
        most: Shapes at most.
    """
    calls = np.array([shape.calls for shape in logged])
    own_us = np.array([shape.us for shape in logged])
    served = np.array(
        [[reaches(more.choice, shape.choice, batch) for shape in logged] for more in logged]
    )
    left = [*np.flatnonzero(served @ calls > 1)] or [*range(len(logged))]
    # A row for each shape: what the calls of all shapes take where it is placed.
    placed_us = np.where(served, EXPECTED * own_us[:, None], np.inf)
    choices: list[ShapeChoice] = []
    best_us = own_us
    # A shape takes a run of its own, and what it saves must be told from noise.
    least_us = TIE_SHARE * (own_us @ calls)
    while left and len(choices) < most:
        sums_us = [np.minimum(best_us, placed_us[number]) @ calls for number in left]
        if best_us @ calls - min(sums_us) < least_us and choices:
            break
        number = left.pop(int(np.argmin(sums_us)))
        best_us = np.minimum(best_us, placed_us[number])
        choices.append(logged[number].choice)
    return tuple(choices)


def what_is_chosen(choices: Collection[ShapeChoice], logged: Sequence[LoggedShape]) -> str:
    """Say what a log holds, and which share of its time the chosen shapes took."""
    total_us = sum(shape.calls * shape.us for shape in logged)
    of_chosen = sum(shape.calls * shape.us for shape in logged if shape.choice in choices)
    names = ", ".join(choice.text for choice in choices)
    return (
        f"{sum(shape.calls for shape in logged)} calls of {len(logged)} shapes; "
        f"{of_chosen / total_us:.0%} of their time is that of the shapes to be placed: {names}"
    )


def reaches(placed: ShapeChoice, called: ShapeChoice, batch: str | None) -> bool:
    """Tell whether a call's inputs have the shape that is placed, or may be padded to it."""
    sizes = dict(called.dims)
    if batch in sizes and sizes[batch] < placed.dims.get(batch, 0):
        sizes[batch] = placed.dims[batch]
    return (placed.shapes, placed.dims) == (called.shapes, sizes)
