"""What a runtime says of its own layers, and what becomes of that beside a placement."""

from __future__ import annotations

from typing import Literal

import msgspec

from collage_engine.records.placement import Residual
from collage_engine.support.typed import Figure

LEAST_RUNS, MOST_RUNS = 5, 50
"""Runs of a model that are profiled, at least and at most, ``LEAST_S`` seconds in all; chosen:
medians of them are steady, files stay small, and the command promises a minute."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer that a runtime executed."""

    name: str
    kind: str
    """What it does, in the runtime's words: ``Conv``, ``FullyConnected``, ``Reorder``."""
    us: Figure | None
    """Microseconds in one run; None: the file says nothing of times."""
    nodes: tuple[str, ...] = ()
    """Names of ONNX nodes, or of their outputs, that it computes as far as its name says; empty:
    the runtime inserted it."""
    absorbs: Literal["nothing", "after", "before"] = "nothing"
    """Which nodes without a layer of their own it may have been fused with: those that read what
    its nodes make, or those that make what they read. The latter in any case where it is called
    after an output."""
    kernel: str = ""
    """Which kernel ran it, where that is said."""
    fell_back: str = ""
    """What ran it instead of what the runtime would prefer; empty: nothing."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of a whole model, in the order in which they ran."""

    toolchain: str
    layers: tuple[Layer, ...]
    us: Figure | None = None
    """Microseconds of a whole run, where that is said."""


class DiagnosedNode(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime made of some ONNX nodes, which it ran as one."""

    onnx_nodes: tuple[str, ...]
    state: Literal["ran", "fell back", "not seen"]
    """``not seen``: no layer names them; they were folded, cost nothing or were fused."""
    us: Figure | None
    device: str = ""
    """What they fell back to."""
    placed_on: tuple[str, ...] = ()
    """The toolchains that run them in the placement."""
    delta_us: float | None = None
    """What the placement takes for them less what the runtime took; None: there is no placement,
    it has no times, or one of its partitions holds other nodes, too."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime's profile by ONNX node, beside the placement of a run."""

    toolchain: str
    run: str
    """Id of the run that the session keeps of the profile."""
    layers_us: Figure | None
    """Sum of the layers."""
    measured_us: Figure | None
    """A whole run while it was profiled."""
    nodes: tuple[DiagnosedNode, ...]
    """The most expensive first."""
    inserted: tuple[Residual, ...]
    """Layers that name no ONNX node: the runtime's own conversions of layouts and types."""
    alone_us: Figure | None = None
    """The runtime on the whole model, timed in common rounds with the placement."""
    placement_us: Figure | None = None
    placement: str = ""
    """Id of the run whose placement it is compared with."""
