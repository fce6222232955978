"""Gives toolchains their colours, letters and patterns, and costs their scales.

A toolchain brings its colour, letters, pattern and title along in its record (``ToolchainState``);
whoever receives records hands them to ``learn``, and everything that is drawn afterwards uses them.
What a record leaves out is generated so that it differs from the toolchains beside it: nothing
is told by colour alone. Costs use a scale of ColorBrewer (Harrower and Brewer 2003).
"""

from __future__ import annotations

import colorsys
import re
import zlib
from collections.abc import Iterable, Sequence
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
class ToolchainLook:
    """The look of a toolchain: fill ``#rrggbb``, text on it, tag of letters, pattern."""

    colour: str
    text: str
    tag: str
    pattern: Pattern
    title: str


_COLOUR = re.compile("#[0-9a-fA-F]{6}")
MOST_LETTERS = 4
"""Letters of a tag, at most; chosen: two are usual, and more fill a box."""
UNPLACED = ToolchainLook("#b8bcc2", "#000000", "–", "solid", "not placed")

_learned: dict[str, ToolchainState] = {}
"""The record that says how a toolchain looks, by the toolchain's name."""
_generated: dict[str, ToolchainState] = {}
"""Looks that were generated for names without a record, as long as nothing else is learned."""


def learn(states: Iterable[ToolchainState]) -> None:
    """Draw these toolchains from now on as their records say.

    A record of an older engine, without a colour, replaces none that has one.
    """
    for state in map(_drawable, states):
        if state.colour or state.name not in _learned:
            _learned[state.name] = state
    _generated.clear()


def _drawable(state: ToolchainState) -> ToolchainState:
    """Returns a record, which may come from a file, without a look that cannot be drawn."""
    colour = state.colour if _COLOUR.fullmatch(state.colour) else ""
    letters = state.letters if len(state.letters) <= MOST_LETTERS else ""
    return msgspec.structs.replace(state, colour=colour, letters=letters)


def toolchain_look(name: str | None) -> ToolchainLook:
    """Return the look of a toolchain or of an instance id (``name[option=value]``)."""
    if not name:
        return UNPLACED
    base = name.split("[", 1)[0]
    state = _learned.get(base)
    if state is None or not (state.colour and state.letters and state.pattern):
        if base not in _generated:
            known = {**_learned, **_generated}
            others = [record for name, record in known.items() if name != base]
            blank = state or ToolchainState(name=base, available=False)
            *_, _generated[base] = with_looks([*others, blank])
        state = _generated[base]
    pattern = cast(Pattern, state.pattern) if state.pattern in PATTERNS else "dots"
    title = state.title or base
    return ToolchainLook(state.colour, text_on(state.colour), state.letters, pattern, title)


def toolchain_title(name: str | None) -> str:
    """Return the name people know, with the instance's options: ``TVM (library OpenBLAS)``."""

    def learned(name: str) -> str:
        state = _learned.get(name)
        return (state.title if state is not None else "") or name

    return instance_title(name, learned) if name else UNPLACED.title


def with_looks(states: Sequence[ToolchainState]) -> tuple[ToolchainState, ...]:
    """Return the records, each with a colour, letters and a pattern; what is missing is generated.

    A generated colour lies as far as can be from those of the other records, letters differ from
    theirs, and the pattern follows from the name.
    """
    states = tuple(map(_drawable, states))
    colours = [UNPLACED.colour, *(state.colour for state in states if state.colour)]
    letters = {state.letters for state in states if state.letters}
    complete = []
    for state in states:
        colour = state.colour or _apart_from(colours)
        tag = state.letters or _letters(state.title or state.name, letters)
        chosen = PATTERNS[1 + zlib.crc32(state.name.encode()) % (len(PATTERNS) - 1)]
        colours.append(colour)
        letters.add(tag)
        complete.append(
            msgspec.structs.replace(
                state,
                colour=colour,
                letters=tag,
                pattern=state.pattern or chosen,
                title=state.title or state.name,
            )
        )
    return tuple(complete)


def _letters(title: str, taken: set[str]) -> str:
    """Return two capital letters of a title that nobody else has, or its first two."""
    known = [c for c in title.upper() if c.isascii() and c.isalnum()] or ["X"]
    pairs = [known[0] + other for other in (*known[1:], *"ABCDEFGHIJKLMNOPQRSTUVWXYZ")]
    return next((pair for pair in pairs if pair not in taken), pairs[0])


def _apart_from(taken: Sequence[str]) -> str:
    """Return the colour whose smallest distance to the taken ones is largest.

    Distances are Euclidean in CIE L*a*b*; the choice is among 24 hues in four lightnesses, on all
    of which black or white text is legible.
    """
    places = [_lab(colour) for colour in taken]
    choices = [
        "#" + "".join(f"{round(255 * c):02x}" for c in colorsys.hls_to_rgb(h / 24, light, 0.75))
        for light in (0.3, 0.45, 0.6, 0.75)
        for h in range(24)
    ]

    def distance(colour: str) -> float:
        here = _lab(colour)
        return min(sum((a - b) ** 2 for a, b in zip(here, p, strict=True)) for p in places)

    return max(choices, key=distance)


def _linear(colour: str) -> tuple[float, float, float]:
    """Return linear red, green and blue, 0…1, of an sRGB colour ``#rrggbb``."""

    def channel(value: int) -> float:
        share = value / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = (channel(int(colour[at : at + 2], 16)) for at in (1, 3, 5))
    return red, green, blue


def _lab(colour: str) -> tuple[float, float, float]:
    """Return the CIE 1976 L*a*b* coordinates of an sRGB colour, white D65."""
    red, green, blue = _linear(colour)

    def root(value: float) -> float:
        return value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116

    x = root((0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047)
    y = root(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    z = root((0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


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
    red, green, blue = _linear(colour)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"


def mix(colour: str, other: str, share: float) -> str:
    """Mixes ``share`` of ``other`` into ``colour``."""
    return _blend((colour, other), share)
