"""Gives toolchains their colours, letters and patterns, and costs their scales.

A toolchain brings its colour, letters, pattern and title along in its record (``ToolchainState``);
whoever receives records hands them to ``learn``, and everything that is drawn afterwards uses them.
What a record leaves out follows from the toolchain's name. Nothing is told by colour alone. Costs
use a scale of ColorBrewer (Harrower and Brewer 2003).
"""

from __future__ import annotations

import colorsys
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast, get_args

import msgspec

from collage_engine.records.toolchain import ToolchainState
from collage_engine.wording.runs import instance_title

Pattern = Literal[
    "solid", "rising", "falling", "level", "upright", "grid", "cross", "dots", "dense", "sparse"
]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)


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


_COLOUR = re.compile("#[0-9a-fA-F]{6}")
UNPLACED = Look(tag="–")

_learned: dict[str, ToolchainState] = {}
"""The record that says how a toolchain looks, by the toolchain's name."""


def learn(states: Iterable[ToolchainState]) -> None:
    """Draw these toolchains from now on as their records say.

    A record of an older engine, without a colour, replaces none that has one.
    """
    for state in states:
        if state.colour or state.name not in _learned:
            _learned[state.name] = with_look(state)


def toolchain_look(name: str | None) -> Look:
    """Return the look of a toolchain or of an instance id (``name[option=value]``)."""
    if not name:
        return UNPLACED
    base = name.split("[", 1)[0]
    state = _learned.get(base) or with_look(ToolchainState(name=base, available=False))
    return Look(state.colour, state.letters, cast(Pattern, state.pattern))


def toolchain_title(name: str | None) -> str:
    """Return the name people know, with the instance's options: ``TVM (library OpenBLAS)``."""

    def learned(name: str) -> str:
        state = _learned.get(name)
        return (state.title if state is not None else "") or name

    return instance_title(name, learned) if name else "not placed"


def with_look(state: ToolchainState) -> ToolchainState:
    """Return a record, which may come from a file, with what it lacks or what cannot be drawn.

    The colour is one of 360 hues in three lightnesses, on all of which black or white text is
    legible.
    """
    number = zlib.crc32(state.name.encode())
    title = state.title or state.name
    colour, letters, pattern = state.colour, state.letters, state.pattern
    if not _COLOUR.fullmatch(colour):
        lightness = (0.3, 0.45, 0.6)[number // 360 % 3]
        shares = colorsys.hls_to_rgb(number % 360 / 360, lightness, 0.75)
        colour = "#" + "".join(f"{round(255 * share):02x}" for share in shares)
    if len(letters) not in (1, 2):
        letters = "".join(c for c in title.upper() if c.isascii() and c.isalnum())[:2] or "X"
    if pattern not in PATTERNS:
        pattern = PATTERNS[1 + number % (len(PATTERNS) - 1)]
    return msgspec.structs.replace(
        state, colour=colour, letters=letters, pattern=pattern, title=title
    )


def _blend(stops: tuple[str, ...], share: float) -> str:
    share = min(1.0, max(0.0, share))
    place = share * (len(stops) - 1)
    low = min(int(place), len(stops) - 2)
    part = place - low

    def channel(at: int) -> int:
        a, b = int(stops[low][at : at + 2], 16), int(stops[low + 1][at : at + 2], 16)
        return round(a + (b - a) * part)

    return f"#{channel(1):02x}{channel(3):02x}{channel(5):02x}"


_SEQUENTIAL = ("#f3f6fa", "#d3e1ef", "#a6c8e4", "#6ba7d6", "#3882bf", "#1b5b9b", "#08306b")


def sequential(share: float) -> str:
    """Returns the colour of a share 0…1 of the largest cost: the dearer, the darker.

    The colours are ColorBrewer's Blues.
    """
    return _blend(_SEQUENTIAL, share)


def text_on(colour: str) -> str:
    """Returns black or white, whichever stands out more on ``colour`` (WCAG relative luminance)."""

    def linear(at: int) -> float:
        share = int(colour[at : at + 2], 16) / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    luminance = 0.2126 * linear(1) + 0.7152 * linear(3) + 0.0722 * linear(5)
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"


def mix(colour: str, other: str, share: float) -> str:
    """Mixes ``share`` of ``other`` into ``colour``."""
    return _blend((colour, other), share)
