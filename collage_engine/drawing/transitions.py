"""Finds what crosses between toolchains, formats or devices along the edges of a picture."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage_engine.drawing.scene import Scene
from collage_engine.records.placement import Conversion, Partition, Placement
from collage_engine.wording.amounts import bytes_text, time_text
from collage_engine.wording.titles import toolchain_title


@dataclass(frozen=True, kw_only=True)
class DrawnTransition:
    """The values that pass along one drawn edge from one toolchain, format or device to another."""

    edge: int
    """Number of the edge in the display graph."""
    source: str
    target: str
    """``source`` and ``target``: instances of the toolchains that make and read the values."""
    bytes: int
    """Bytes that the values have together."""
    conversions: tuple[Conversion, ...] = ()
    """Changes of format that the readers need."""
    devices: tuple[str, str] = ("cpu", "cpu")

    @property
    def us(self) -> float | None:
        """Returns the expected time of the conversions in µs; None where it is not known.

        It is None, too, where there are no conversions.
        """
        times = [conversion.us for conversion in self.conversions]
        known_us = [us for us in times if us is not None]
        return sum(known_us) if known_us and len(known_us) == len(times) else None

    @property
    def label(self) -> str:
        """Returns ``256 KiB``, with the conversion and its cost where there is one."""
        ways = dict.fromkeys(
            f"{conversion.source}→{conversion.target}" for conversion in self.conversions
        )
        if self.devices[0] != self.devices[1]:
            ways[f"{self.devices[0]}→{self.devices[1]}"] = None
        cost = "" if self.us is None else time_text(self.us)
        return " ".join([bytes_text(self.bytes), *ways, *filter(None, [cost])])

    @property
    def sentence(self) -> str:
        """Return what passes from whom to whom, for tool tips."""
        return (
            f"{toolchain_title(self.source)} hands {self.label} over to "
            f"{toolchain_title(self.target)}"
        )


LETTER = 6.0
"""Width of a letter of a label, in units of the picture; that of its font, which is 10 units high,
rounded up."""


def labels_on_the_left(
    tips: Sequence[tuple[float, float]], labels: Sequence[str]
) -> frozenset[int]:
    """Tell which labels stand on the left of their arrows, because the right side is taken.

    Args:
        tips: Where the arrows end.
        labels: The text of each, which stands on the right of its arrow otherwise.

    Returns:
        Numbers of labels that would be written over that of an arrow further to the right.
    """
    # Arrows end at the upper edges of boxes, which have one height in each row.
    ends = sorted((round(y), x, at) for at, (x, y) in enumerate(tips))
    return frozenset(
        at
        for (y, x, at), (next_y, next_x, _) in itertools.pairwise(ends)
        if next_y == y and next_x - x < LETTER * len(labels[at])
    )


def transitions(shown: Scene, placement: Placement | None) -> tuple[DrawnTransition, ...]:
    """Return the transitions of a placement that a scene draws as edges or jumps.

    Values that pass between two partitions of one toolchain, in one format on one device, are not
    among them: they only pay for a launch.

    Args:
        shown: The picture.
        placement: The placement; without one there are none.
    """
    if placement is None:
        return ()
    owner = {n: p for p in placement.partitions for n in p.nodes}
    converted = {conversion.node: conversion for conversion in placement.conversions}
    number = {edge: at for at, edge in enumerate(shown.display.edges)}
    passing: dict[int, dict[int, list[Partition]]] = {}
    for a, b in shown.graph.edges:
        maker, reader = owner.get(a), owner.get(b)
        if maker is None or reader is None or maker is reader:
            continue
        at = number.get((shown.display.box_of[a], shown.display.box_of[b]))
        if at is not None and _crosses(a, maker, reader, converted):
            passing.setdefault(at, {}).setdefault(a, []).append(reader)
    return tuple(
        _transition(shown, at, values, owner, converted) for at, values in sorted(passing.items())
    )


def _crosses(
    value: int, maker: Partition, reader: Partition, converted: Mapping[int, Conversion]
) -> bool:
    return (
        maker.toolchain != reader.toolchain
        or maker.device != reader.device
        or _conversion(value, maker, reader, converted) is not None
    )


def _conversion(
    value: int, maker: Partition, reader: Partition, converted: Mapping[int, Conversion]
) -> Conversion | None:
    """Return the conversion between what one partition gives and another takes, if they differ."""
    gives, takes = maker.gives.get(value, "plain"), reader.takes.get(value, "plain")
    if gives == takes:
        return None
    wanted = converted.get(value)
    if wanted is not None and (wanted.source, wanted.target) == (gives, takes):
        return wanted
    return Conversion(node=value, source=gives, target=takes)


def _transition(
    shown: Scene,
    edge: int,
    values: Mapping[int, Sequence[Partition]],
    owner: Mapping[int, Partition],
    converted: Mapping[int, Conversion],
) -> DrawnTransition:
    first = next(iter(values))
    maker, reader = owner[first], values[first][0]
    conversions = {
        (value, conversion.target): conversion
        for value, readers in values.items()
        for each in readers
        if (conversion := _conversion(value, owner[value], each, converted)) is not None
    }
    return DrawnTransition(
        edge=edge,
        source=maker.instance,
        target=reader.instance,
        bytes=sum(kind.bytes for value in values for kind in shown.graph.calls[value].types),
        conversions=tuple(conversions.values()),
        devices=(maker.device, reader.device),
    )
