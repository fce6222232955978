"""Toolchains are told apart by everyone: by colour under every colour vision, tag and pattern."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from collage_engine.drawing.palette import UNPLACED, toolchain_look
from collage_engine.records.toolchain import ToolchainState
from collage_engine.toolchains import registry
from collage_engine.wording import titles
from collage_engine.wording.sentences import instance_title
from collage_engine.wording.titles import register_toolchains, with_style

VISIONS = {
    "common": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
"""How linear red, green and blue are seen (Machado, Oliveira and Fernandes 2009, IEEE TVCG 15(6),
severity 1)."""
APART = 14.0
"""CIE 1976 ΔE*; 2.3 can just be noticed side by side."""

NAMES = tuple(registry.TOOLCHAINS)
RECORDS = [
    registry.described(ToolchainState(name=name, available=True), registry.about(name))
    for name in NAMES
]
register_toolchains(RECORDS)
LOOKS = {name: toolchain_look(name) for name in NAMES}


def linear(colour: str) -> np.ndarray:
    share = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear sRGB, white D65."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    part = xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    root = np.where(part > 0.008856, np.cbrt(part), 7.787 * part + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_are_apart(vision: str) -> None:
    seen = {name: lab(np.array(VISIONS[vision]) @ linear(k.colour)) for name, k in LOOKS.items()}
    close = {
        (a, b): round(float(np.linalg.norm(seen[a] - seen[b])), 1)
        for a, b in combinations(seen, 2)
        if np.linalg.norm(seen[a] - seen[b]) < APART
    }
    assert not close


def test_every_toolchain_has_a_look_of_its_own() -> None:
    for field in ("colour", "tag", "pattern"):
        assert len({getattr(look, field) for look in LOOKS.values()}) == len(LOOKS), field
    assert UNPLACED.colour not in {look.colour for look in LOOKS.values()}


@pytest.mark.parametrize(
    "colour", ["red", "#12", "#1234567", '#000000"><script>', "'>", "#00000g", "#000000\n"]
)
def test_a_colour_that_is_none_is_replaced_by_a_generated_one(
    colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(titles, "_learned", {})
    state = ToolchainState(
        name="odd", available=True, colour=colour, letters="x" * 5000, pattern="none", title="Odd"
    )
    drawn = with_style(state)
    for look in (drawn.colour, drawn.letters):
        assert look not in (colour, state.letters) and look.isprintable()
    register_toolchains([state])
    look = toolchain_look("odd")
    assert re.fullmatch("#[0-9a-f]{6}", look.colour) and len(look.tag) <= 4


def test_products_left_in_float32_are_counted_and_not_listed() -> None:
    title = instance_title(
        "tvm[precision=bf16,float32=0+4+9-12]", lambda name: {"tvm": "TVM"}.get(name, name)
    )
    assert title == "TVM (precision bf16, 6 products in float32)"
