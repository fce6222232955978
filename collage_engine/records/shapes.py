"""Shapes that a model is placed for: what the user asked for, and what came of each."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Annotated, Any

import msgspec

from collage_engine.support.errors import InvalidValue, UsageError
from collage_engine.support.time_limits import LEAST_S
from collage_engine.support.typed import Checked, Count, Figure, Positive, convert

MOST_SHAPES = 64
"""Shapes of one artifact, at most; chosen: each is a run of its own, which takes minutes."""
STOPPED_BUDGET_S = LEAST_S
"""Seconds of budget for each shape that is left when the user ends the run with what it has."""
MOST_AXES = 64
"""Sizes of one input, at most: NPY_MAXDIMS, the most of NumPy's arrays."""
MOST_ELEMENTS = 2**48
"""Elements of an input, at most: an x86-64 processor addresses so many bytes."""

_Size = Annotated[int, msgspec.Meta(ge=0, le=MOST_ELEMENTS)]
_Sizes = Annotated[tuple[_Size, ...], msgspec.Meta(min_length=1, max_length=MOST_AXES)]
_Entries = Annotated[list[dict[str, _Size | _Sizes]], msgspec.Meta(min_length=1)]
"""For each shape the sizes of dimensions and of whole inputs, by name."""


class OpenSizes(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's file leaves open of the sizes of its inputs."""

    dimensions: dict[str, tuple[str, ...]] = {}
    """Dimension that the model names → the inputs that have it, in the order of the inputs. Those
    of ``inputs`` are left out."""
    inputs: dict[str, tuple[int, ...]] = {}
    """Input with an open size that has no name, or of unknown rank → an example of its sizes."""


class ShapeChoice(Checked, frozen=True, kw_only=True):
    """One shape that the user asked for: sizes of named dimensions, and of whole inputs."""

    dims: dict[str, int] = {}
    """Symbolic dimension of the model → its size."""
    shapes: dict[str, tuple[int, ...]] = {}
    """Input → all its sizes."""

    @property
    def text(self) -> str:
        """Return the shape as the user would write it: ``batch=4 sequence=64``."""
        inputs = (f"{name}={'x'.join(map(str, sizes))}" for name, sizes in self.shapes.items())
        return " ".join([*(f"{name}={size}" for name, size in self.dims.items()), *inputs])


def combined(
    dims: Mapping[str, Sequence[int]], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[ShapeChoice, ...]:
    """Return every combination of named dimensions' values, beside inputs' fixed shapes.

    Args:
        dims: Dimension → the sizes that it should have, in the user's order.
        shapes: Input → sizes, the same in all combinations.

    Raises:
        UsageError: A value has a wrong type, or there are more combinations than one artifact may
            have.
    """
    try:
        dims = convert(dims, dict[str, tuple[int, ...]])
    except msgspec.ValidationError as error:
        raise UsageError(f"the sizes of dimensions: {error}") from error
    count = math.prod(len(sizes) for sizes in dims.values())
    _check_count(count, "--dim")
    return tuple(
        ShapeChoice(dims=dict(zip(dims, sizes, strict=True)), shapes=dict(shapes))
        for sizes in product(*dims.values())
    )


def listed(data: Any, option: str) -> tuple[ShapeChoice, ...]:
    """Return the shapes that a JSON document lists.

    Args:
        data: A list of objects; each maps a dimension's name to its size, or an input's name to the
            list of its sizes.
        option: How messages name the document.

    Raises:
        UsageError: It is no such list.
    """
    try:
        entries = convert(data, _Entries, json=True)
    except msgspec.ValidationError as error:
        example = '[{"batch": 1}, {"x": [2, 3]}]'
        raise UsageError(f"{option}: {error} (write it like {example})") from error
    _check_count(len(entries), option)
    choices = []
    for entry in entries:
        dims = {name: size for name, size in entry.items() if isinstance(size, int)}
        shapes = {name: size for name, size in entry.items() if isinstance(size, tuple)}
        for name, sizes in shapes.items():
            if math.prod(sizes) > MOST_ELEMENTS:
                raise UsageError(f"{option}: {name} = {list(sizes)} is larger than any memory")
        choices.append(ShapeChoice(dims=dims, shapes=shapes))
    for index, choice in enumerate(choices):
        if not choice.dims and not choice.shapes:
            raise UsageError(f"{option}: entry {index} names no dimension and no input")
        if choice in choices[:index]:
            raise UsageError(f"{option}: {choice.text} is listed twice")
    return tuple(choices)


def named_sizes(text: str) -> tuple[str, tuple[int, ...]]:
    """Read a name and sizes, written as ``NAME=1,4``.

    Raises:
        InvalidValue: It is written otherwise.
    """
    name, equals, sizes = text.rpartition("=")
    if not equals or not name or not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", sizes):
        raise InvalidValue(f"write NAME=1,4, not {text!r}")
    return name.strip(), tuple(map(int, sizes.split(",")))


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``NAME=1,3,224,224``: return the name and the sizes.

    The tensors of a sequence are ``NAME[0]=2,3`` and so on; ``NAME[]=`` says that it has none.

    Raises:
        InvalidValue: The text says no shape, or one that is larger than any memory.
    """
    if text.endswith("[]="):
        return text.removesuffix("="), ()
    name, values = named_sizes(text)  # which may be 0, the model knows
    if math.prod(values) > MOST_ELEMENTS:
        raise InvalidValue(f"{text!r} is larger than any memory")
    return name, values


def _check_count(count: int, option: str) -> None:
    if count > MOST_SHAPES:
        raise UsageError(
            f"{option}: these are {count} shapes; one artifact has at most {MOST_SHAPES}"
        )


class ShapeRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found out for one of the shapes that were placed together."""

    choice: ShapeChoice
    inputs: dict[str, tuple[int, ...]]
    """Input → sizes."""
    run: str
    """Id of the run of this shape."""
    latency_us: Positive | None
    spread_us: tuple[Figure, Figure] | None = None
    """20th and 80th percentile."""
    items: Count = 1
    """Items of one run: the leading extent that all inputs have, the batch; 1 where they differ."""
    items_per_s: Figure | None = None
    toolchains: tuple[str, ...] = ()
    """Those of the placement, the one with the most operators first."""
    partitions: Count = 0
    best_single: str = ""
    """The fastest toolchain that ran the whole model alone; empty: none did."""
    best_single_us: Figure | None = None
    distinct: Count = 0
    """Distinct candidates of this shape."""
    measured: Count = 0
    """Those of them that were measured in this run."""
    from_store: Count = 0
    """Those that had been measured before, for an earlier shape among others."""

    @property
    def gain(self) -> float | None:
        """Return the best single toolchain's latency over this one's: above 1 this is faster."""
        if not self.latency_us or self.best_single_us is None:
            return None
        return self.best_single_us / self.latency_us


def items_of(inputs: Mapping[str, tuple[int, ...]]) -> int:
    """Return the leading extent that all inputs have in common.

    1 where they differ or have none.
    """
    leading = {sizes[0] if sizes else 1 for sizes in inputs.values()}
    return leading.pop() if len(leading) == 1 else 1


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact for several shapes: how large it is, and what runs other ones."""

    bytes: Count
    """Of all files, each content once."""
    apart_bytes: Count = 0
    """The same in one artifact for each shape; 0: not known."""
    padded: str = ""
    """The dimension along which fewer rows are padded to the next larger shape; empty: none."""
    others: str = ""
    """The runtime on which any other shape runs the model's own file; empty: none does."""
