"""Colours, letter tags and patterns of toolchains, and the scale for costs.

Toolchains wear the colours of Okabe and Ito (https://jfly.uni-koeln.de/color/, distinguishable
with every common colour vision) and three found beside them, as far from all others as can be.
Each has a letter tag and a pattern of its own, so that nothing is told by colour alone. Costs use
cividis (Nuñez, Anderton and Renslow 2018, PLOS ONE 13(7)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pattern = Literal[
    "solid", "rising", "falling", "level", "upright", "grid", "cross", "dots", "dense", "sparse"
]


@dataclass(frozen=True)
class ToolchainLook:
    """How a toolchain is recognised: fill ``#rrggbb``, text on it, tag of letters, pattern."""

    colour: str
    text: str
    tag: str
    pattern: Pattern
    title: str


_LOOKS: dict[str, ToolchainLook] = {
    "tvm": ToolchainLook("#0072b2", "#ffffff", "TV", "solid", "TVM"),
    "onnxruntime": ToolchainLook("#e69f00", "#000000", "OR", "rising", "ONNX Runtime"),
    "onednn": ToolchainLook("#009e73", "#000000", "DN", "falling", "oneDNN"),
    "openvino": ToolchainLook("#56b4e9", "#000000", "OV", "level", "OpenVINO"),
    "openblas": ToolchainLook("#f0e442", "#000000", "OB", "upright", "OpenBLAS"),
    "mkl": ToolchainLook("#883824", "#ffffff", "MK", "sparse", "MKL"),
    "cublas": ToolchainLook("#cc79a7", "#000000", "CB", "grid", "cuBLAS"),
    "cudnn": ToolchainLook("#d55e00", "#000000", "CD", "cross", "cuDNN"),
    "cutlass": ToolchainLook("#9cec74", "#000000", "CU", "dots", "CUTLASS"),
    "tensorrt": ToolchainLook("#8810ec", "#ffffff", "TR", "dense", "TensorRT"),
}

UNPLACED = ToolchainLook("#b8bcc2", "#000000", "–", "solid", "not placed")


def toolchain_look(name: str | None) -> ToolchainLook:
    """The look of a toolchain or of an instance id (``onnxruntime[level=basic]``)."""
    if not name:
        return UNPLACED
    base = name.split("[", 1)[0]
    known = _LOOKS.get(base)
    if known is not None:
        return known
    # A toolchain this table has not met still gets a letter tag of its own.
    return ToolchainLook("#a6a6a6", "#000000", base[:2].upper(), "dots", base)


def toolchain_title(name: str | None) -> str:
    """The name people know, with the instance's options: ``ONNX Runtime · level=basic``."""
    if not name:
        return UNPLACED.title
    base, _, options = name.partition("[")
    title = toolchain_look(base).title
    return f"{title} · {options.rstrip(']')}" if options else title


_CIVIDIS = (
    "#00224e",
    "#083370",
    "#35456c",
    "#4f576c",
    "#666970",
    "#7d7c78",
    "#948e77",
    "#aea371",
    "#c8b866",
    "#e5cf52",
    "#fee838",
)

_DIVERGING = (
    "#2166ac",
    "#4393c3",
    "#92c5de",
    "#d1e5f0",
    "#f7f7f7",
    "#fddbc7",
    "#f4a582",
    "#d6604d",
    "#b2182b",
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


def cividis(share: float) -> str:
    """Colour of a share 0…1 of the largest cost."""
    return _blend(_CIVIDIS, share)


def diverging(share: float) -> str:
    """Colour of −1 (better, blue) … 0 (same, near white) … +1 (worse, red)."""
    return _blend(_DIVERGING, (share + 1) / 2)


def text_on(colour: str) -> str:
    """Black or white, whichever stands out more on ``colour`` (WCAG relative luminance)."""

    def linear(value: int) -> float:
        share = value / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(colour[at : at + 2], 16)) for at in (1, 3, 5))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"


def mix(colour: str, other: str, share: float) -> str:
    """``share`` of ``other`` mixed into ``colour``."""
    return _blend((colour, other), share)
