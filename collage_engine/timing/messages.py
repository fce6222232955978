"""The measuring child and its parent exchange these messages.

The parent opens a model (``OpenRequest``), then asks for one group of candidates after the other
(``TimingRequest``) and gets a ``TimingReply`` for each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from collage_engine.records.candidate import Cost
from collage_engine.records.format import Formats
from collage_engine.records.toolchain import ToolchainInstance

WRONG_NUMBERS = "wrong numbers"
"""How reasons begin that hold for one model's values only, not wherever the key is equal."""


@dataclass(frozen=True)
class OpenRequest:
    """The first request to a child: which model to open."""

    model_path: str
    shapes: dict[str, tuple[int, ...]]
    truth_folder: str
    marker_path: str
    sha256: str | None = None
    """Of the model file: another one under its name must not be measured in its stead."""


@dataclass(frozen=True)
class TimingRequest:
    """Candidates over one set of operators; ``instances`` go by their place in the replies."""

    nodes: tuple[int, ...]
    """Operator numbers."""
    instances: dict[int, ToolchainInstance]
    """In this order they are compiled and run by themselves."""
    formats: dict[int, tuple[Formats, Formats]] = field(default_factory=dict)
    """What the candidate in a place takes and gives, by operator number; absent: plain."""
    limit_s: float = math.inf
    """Seconds that a candidate may take to be compiled, to run, and for each sample of its time."""


@dataclass(frozen=True)
class TimingReply:
    """A message on the way: the cost of the candidate in this place."""

    place: int
    cost: Cost
