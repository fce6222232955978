"""A run reports these events to its listeners; service notifications carry them."""

from __future__ import annotations

from typing import Literal

import msgspec

from collage_engine.records.candidate import Cost
from collage_engine.records.placement import Run

SHOWN = {"shown": True}
"""``extra`` of log records that say what listeners get as an event too: they go to the log file,
and not to standard error a second time."""

StageName = str
"""A stage of a run, one of ``wording.sentences.STAGE_TITLES``."""


class Stage(msgspec.Struct, frozen=True, kw_only=True, tag="stage"):
    """A stage began (``done`` False) or ended."""

    stage: StageName
    done: bool = False
    seconds: float = 0.0
    detail: str = ""


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """How far the stage is. ``left_s`` is None until there is a rate to tell it from."""

    stage: StageName
    done: int
    total: int
    left_s: float | None = None
    """Seconds until the stage ends, never more than the run's budget leaves it."""
    run_left_s: float | None = None
    """Seconds until the run's budget ends; None: it has none."""
    rate: float | None = None
    """Items per second."""
    now: str = ""
    """What is being worked on."""
    nodes: tuple[int, ...] = ()
    """The operators that are being worked on, by their numbers; empty where they are not known."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag="measured"):
    """A candidate's cost arrived."""

    candidate: str
    cost: Cost


class Log(msgspec.Struct, frozen=True, kw_only=True, tag="log"):
    """A sentence for the user: a remark, a warning or an error."""

    level: Literal["info", "warning", "error"] = "info"
    text: str


class Provisional(msgspec.Struct, frozen=True, kw_only=True, tag="provisional"):
    """The run has an answer, or a better one than before; later stages may improve it.

    Until the run ends, ``export.artifact`` takes the id of the run and exports this answer.
    """

    run: Run
    """The document so far, with ``provisional`` set: the placement with its measured time, and
    the baselines that were timed."""


class Probing(msgspec.Struct, frozen=True, kw_only=True, tag="probing"):
    """A toolchain is being looked for, which may compile its adapter. It belongs to no document."""

    number: int
    """Of this toolchain among all that are looked for, from 1."""
    total: int


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The run ended: finished, cancelled (what was measured is kept) or failed."""

    state: Literal["finished", "cancelled", "failed"]
    run: str | None = None
    """Id of the run it produced."""
    reason: str | None = None


Event = Stage | Progress | Measured | Log | Provisional | Probing | Done
