"""What toolchains and baselines are called, and how the records of toolchains say they look.

A toolchain brings its colour, letters, pattern and title along in its record (``ToolchainState``);
what receives records hands them to ``learn``, and everything that is shown afterwards uses them.
What a record leaves out follows from the toolchain's name.
"""

from __future__ import annotations

import colorsys
import re
import zlib
from collections.abc import Callable, Iterable
from typing import Literal, get_args

import msgspec

from collage_engine.records.placement import Baseline, BaselineKind
from collage_engine.records.toolchain import ToolchainState
from collage_engine.wording.sentences import instance_title

Pattern = Literal[
    "solid", "rising", "falling", "level", "upright", "grid", "cross", "dots", "dense", "sparse"
]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)

_COLOUR = re.compile("#[0-9a-fA-F]{6}")

_learned: dict[str, ToolchainState] = {}
"""The record that says how a toolchain looks, by the toolchain's name."""


def register_toolchains(states: Iterable[ToolchainState]) -> None:
    """Draw these toolchains from now on as their records say.

    A record of an older engine, without a colour, replaces none that has one.
    """
    for state in states:
        if state.colour or state.name not in _learned:
            _learned[state.name] = with_style(state)


def toolchain_state(name: str) -> ToolchainState:
    """Return what is known of a toolchain or of an instance id (``name[option=value]``)."""
    base = name.split("[", 1)[0]
    return _learned.get(base) or with_style(ToolchainState(name=base, available=False))


def toolchain_title(name: str | None) -> str:
    """Return the name people know, with the instance's options: ``TVM (precision bf16)``."""
    if not name:
        return "not placed"
    return instance_title(name, lambda toolchain: toolchain_state(toolchain).title)


def with_style(state: ToolchainState) -> ToolchainState:
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


def baseline_title(baseline: Baseline) -> str:
    """Return what a baseline is called: ``ONNX Runtime only``, ``greedy oneDNN → TVM``."""
    return contender_title(baseline.name, baseline.kind)


def contender_title(
    name: str,
    kind: BaselineKind | Literal["collage"],
    title_of: Callable[[str], str] = toolchain_title,
) -> str:
    """Return what a baseline or a placement of the search is called while a run tries it.

    Args:
        name: The name that the run gives it, with the toolchain's own name in it.
        kind: What kind of baseline it is, or ``collage``.
        title_of: Gives the title of a toolchain's instance.
    """
    title = " ".join(title_of(word) for word in name.split())
    if kind == "collage":
        return "Collage" if name == kind else title
    if kind == "whole-model":
        return f"{title_of(name)} only"
    if kind == "fuseops":
        return title
    if kind == "user":
        return f"own placement {title}" if "placement" not in title else title
    return title if title.startswith("greedy") else f"greedy {title}"
