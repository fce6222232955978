"""Reads the sizes of a model's inputs as people write them."""

from __future__ import annotations


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Read sizes of inputs.

    Args:
        text: E.g. ``input=1,3,224,224; mask=1,128``.

    Returns:
        Input name → sizes.

    Raises:
        ValueError: One sentence about the first part that cannot be read.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for part in text.replace("\n", ";").split(";"):
        if not part.strip():
            continue
        name, equals, sizes = part.rpartition("=")
        try:
            extents = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            extents = ()
        if not equals or not name.strip() or not extents or min(extents) < 1:
            raise ValueError(f"{part.strip()!r}: sizes are written NAME=1,3,224,224")
        shapes[name.strip()] = extents
    return shapes
