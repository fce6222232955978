"""The pipeline and the search answer with these records, which the faces show.

What the process of the run hands back while it goes on stands at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from collage_engine.records.candidate import CandidateRecord, Refusal
from collage_engine.records.pin import LimitVerdict, PinVerdict
from collage_engine.records.placement import Placement, Run
from collage_engine.records.toolchain import ToolchainState


class Price(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a choice costs.

    It is the latency of the best placement with the choice, less that of the shown placement.
    """

    us: float | None
    """Microseconds, negative where it is faster; None: no placement under the pins and limits
    contains the choice."""
    at_least: bool = False
    """Whether there was no time to find out more than a lower bound."""


class SearchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The best placement at the stored costs, and what others would cost."""

    placement: Placement | None
    """Estimated, not confirmed."""
    infeasible: dict[str, Any] | None = None
    verdicts: tuple[PinVerdict, ...] = ()
    pins_us: float | None = None
    """What several pins cost together, in microseconds; None: not known."""
    limits: tuple[LimitVerdict, ...] = ()
    prices: dict[str, Price] = {}
    """By candidate id. Of the price of a measured candidate that is not here nothing is known."""


class NoCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """Why a toolchain has no candidate for a node."""

    toolchain: str
    reason: str


AlternativeStatus = Literal[
    "chosen",
    "tied",
    "slower",
    "faster",
    "at least",
    "unmeasured",
    "not known",
    "ruled out",
    "instead of the pin",
    "invalid",
    "no candidate",
]
"""What is known of a choice at a node: it is the shown placement's; the whole model is within noise
with it, slower, or faster; slower by at least so much; its candidate was not measured; there was no
time to search a placement with it; no placement under the pins and limits contains it; what it
would cost if the node were pinned to it instead; its measurement failed; its toolchain has no
candidate for the node."""


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A choice at a node: a candidate that holds it, or a toolchain that has none."""

    toolchain: str
    """Id of the toolchain's instance."""
    status: AlternativeStatus
    candidate: str | None = None
    """Its id; None where the toolchain has no candidate."""
    operators: str = ""
    """The nodes of the candidate by name."""
    here_us: float | None = None
    """The cost that the search uses for the candidate, in µs."""
    whole_us: float | None = None
    """The extra time of the whole model against the shown placement, in µs; negative where it is
    faster, and only a lower bound for the states ``at least`` and ``unmeasured``."""
    reason: str = ""
    """Why there is no figure, where somebody said so."""


class ExplainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node runs where it does."""

    words: tuple[str, ...]
    """Sentences about the placement that is shown, the decisive one first."""
    alternatives: tuple[Alternative, ...] = ()
    """The candidate of the placement, the others by price, then the toolchains without any."""
    candidates: tuple[CandidateRecord, ...] = ()
    prices: dict[str, Price] = {}
    """As in :class:`SearchAnswer`."""
    chosen: str | None = None
    runner_up: Placement | None = None
    not_offered: tuple[NoCandidate, ...] = ()
    ties: tuple[str, ...] = ()
    """Candidates whose costs overlap with that of the placement's."""
    prices_instead: dict[str, float] = {}
    """Where the node is pinned to a toolchain: candidate that holds it to the extra time, in µs, of
    the best placement with it and without that demand; negative where that is faster."""

    def __str__(self) -> str:
        return "\n".join(self.words)


Section = tuple[str, tuple[tuple[str, str], ...]]
"""A title, and rows of a name and a value."""


class InsideAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate was compiled to, or what a node holds: its weights, its nested graphs."""

    relax: str | None = None
    tir: str | None = None
    plan: tuple[dict[str, Any], ...] = ()
    """Steps of a library's plan, or kernels of TVM's: op, algorithm, layout, post_ops."""
    sections: tuple[Section, ...] = ()
    """What a node holds, in words."""
    reason: str | None = None
    """Why a part is missing."""


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change says what became of one ONNX node between two runs."""

    node: int
    """The number of the node's first operator."""
    change: Literal["same", "moved", "regrouped"]
    before: str | None
    after: str | None
    delta_us: float | None = None
    """Microseconds; None: either run has it in a partition with other nodes, or has no times."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs side by side; differences are those of ``b`` less those of ``a``."""

    a: str
    b: str
    measured_us: tuple[float | None, float | None]
    """What each took in its own run, at different times."""
    delta_us: float | None
    """By how much they differ in the common rounds of one of the runs; None: no run timed both."""
    against: str = ""
    """The difference in words: ``−12.0 %``, or why it is no figure."""
    nodes: tuple[NodeChange, ...]
    partitions: tuple[tuple[int, int], ...] = ()
    """Number of partitions per toolchain is in ``by_toolchain``; here: (a, b) totals."""
    by_toolchain: dict[str, tuple[int, int]] = {}


@dataclass(frozen=True)
class RunUpdate:
    """News of a run, sent while it goes on, so that a cancelled run keeps its candidates.

    A field that is None has no news; the last update of a run holds its document.
    """

    candidates: list[CandidateRecord] | None = None
    without_candidates: dict[str, dict[int, Refusal]] | None = None
    constants: dict[str, float] | None = None
    run: Run | None = None
    toolchains: list[ToolchainState] | None = None


CheckName = Literal["latency", "error", "memory"]
CheckOutcome = Literal["passed", "failed", "tie"]
"""``tie``: the machine is too noisy to say."""


class GateCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a gate looks at."""

    name: CheckName
    outcome: CheckOutcome
    value: float
    """Of a latency, how many times the baseline's it is; of an error, ``max|y-r| / max|r|``; of
    memory, bytes."""
    limit: float
    """The largest value that passes."""
    low: float | None = None
    """Lower end of the 99 % interval in which the value lies; None: it is not an estimate."""
    high: float | None = None
    pairs: int = 0
    """Pairs of processes that were timed in common rounds."""
    us: float | None = None
    """Microseconds of a call; None: both are the same module and were not timed."""
    baseline_us: float | None = None


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """The document of ``collage check --json``."""

    model: str
    against: str
    outcome: CheckOutcome
    """Failed where a check failed; else that of the latency."""
    machine: str
    """The device of this machine."""
    busy: str = ""
    """Who else used the machine when the rounds began; empty: hardly anybody."""
    checks: tuple[GateCheck, ...]
