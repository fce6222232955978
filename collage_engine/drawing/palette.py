"""Gives toolchains their colours, letters and patterns, costs their scales, and pictures themes.

The records of toolchains say how they look (``wording/titles.py``). Nothing is told by colour
alone. Costs use a scale of ColorBrewer (Harrower and Brewer 2003).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import cast

import msgspec

from collage_engine.support.files import resource
from collage_engine.support.typed import decode
from collage_engine.wording.titles import Pattern, toolchain_state


class Colours(msgspec.Struct, frozen=True):
    """Every colour of a theme that is painted by hand or named in the style sheet, ``#rrggbb``."""

    name: str
    window: str
    panel: str
    canvas: str
    raised: str
    text: str
    quiet: str
    faint: str
    line: str
    border: str
    edge: str
    focus: str
    """Marks what is selected or has the focus, in the graph and in widgets, and links. No red: red
    is for errors."""
    on_focus: str
    hover: str
    warning: str
    warning_text: str
    error: str
    error_text: str
    bad: str
    dark: bool


LIGHT, DARK, CONTRAST = decode(
    resource("themes.json").read_bytes(), tuple[Colours, Colours, Colours]
)


@dataclass(frozen=True)
class Look:
    """A colour with what tells it from others without colours: a tag of letters, and a pattern."""

    colour: str = "#b8bcc2"
    """The fill, as ``#rrggbb``."""
    tag: str = ""
    pattern: Pattern = "solid"

    @property
    def text(self) -> str:
        """Return the colour of text on the fill."""
        return text_on(self.colour)


UNPLACED = Look(tag="–")


def toolchain_look(name: str | None) -> Look:
    """Return the look of a toolchain or of an instance id (``name[option=value]``)."""
    if not name:
        return UNPLACED
    state = toolchain_state(name)
    return Look(state.colour, state.letters, cast(Pattern, state.pattern))


def _blend(stops: tuple[str, ...], share: float) -> str:
    share = min(1.0, max(0.0, share))
    position = share * (len(stops) - 1)
    low = min(int(position), len(stops) - 2)
    one, other = (bytes.fromhex(stop[1:]) for stop in stops[low : low + 2])
    pairs = zip(one, other, strict=True)
    return "#" + bytes(round(a + (b - a) * (position - low)) for a, b in pairs).hex()


_SEQUENTIAL = ("#f3f6fa", "#d3e1ef", "#a6c8e4", "#6ba7d6", "#3882bf", "#1b5b9b", "#08306b")


def sequential(share: float) -> str:
    """Return the colour of a share 0…1 of the largest cost: the dearer, the darker.

    The colours are ColorBrewer's Blues.
    """
    return _blend(_SEQUENTIAL, share)


def text_on(colour: str) -> str:
    """Return black or white, whichever stands out more on ``colour`` (WCAG relative luminance)."""
    shares = (channel / 255 for channel in bytes.fromhex(colour[1:]))
    linear = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    luminance = sum(map(operator.mul, (0.2126, 0.7152, 0.0722), linear))
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"


def mix(colour: str, other: str, share: float) -> str:
    """Mixes ``share`` of ``other`` into ``colour``."""
    return _blend((colour, other), share)
