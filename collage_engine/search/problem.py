"""The search problem and its answer: public formats and their exact meaning, and what pins do.

What the words mean here, exactly
---------------------------------
**Nodes** are operators, listed in topological order; ``inputs`` are producing nodes only, and
repeating one changes nothing. Every listed node is covered, also one that reaches no output.

**Candidates** are node sets, connected or not, with any number of exits. One from which a path
leaves and comes back waits for itself, so that no cover contains it. Only ``measured`` ones are
chosen; ``invalid`` and ``unknown`` ones never.

**A cover** is a set of candidates in which every node lies exactly once and whose quotient
graph (partitions as nodes) has no cycle. It costs the sum of

1. ``cost_us`` of its candidates, plus ``launch_us`` for each;
2. *handing over*: a value is a node's output. When a partition other than its producer's
   consumes it, it crosses from the producer's toolchain to the consumer's. Each
   (value, from, to) that occurs is paid once, however many partitions of that toolchain consume
   the value; ``from`` may equal ``to`` (two partitions of one toolchain). A pair that is not
   listed costs nothing. Toolchain names are compared as written.
3. *conversions*: a partition leaves a value in the format ``gives[node]``, ``plain`` when absent,
   and wants an input in the format ``takes[producer]``, ``plain`` when absent. Where they differ,
   the value is converted once per (value, wanted format). A conversion that is not listed cannot
   be done, so covers that need it do not exist. Graph outputs are wanted ``plain``; a partition
   that wants ``plain`` too shares that conversion. What happens inside a partition is its own.

All costs are finite, at least 0 and at most 1e15 us. They are summed exactly, in units of 1e-9 us,
so that equal is equal. Between covers of exactly equal cost ``priority`` decides: the least sum,
over nodes, of the place of the node's toolchain in that list (one that is not listed comes after
all that are); then fewer partitions; then the order of the candidates in the problem.

**Pins** hold for partitions that contain any of the pin's nodes: ``toolchain`` (a toolchain, or
an instance of it: ``onnxruntime`` also takes ``onnxruntime[level=basic]``), ``not_toolchain``,
``device`` (a candidate without one is on ``cpu``), ``exactly`` (the partition is these nodes, no
more, no less; with ``toolchain``: of that one), ``together`` (one partition holds them all,
others welcome).

**Limits** (optional; ``constraints`` in JSON) say which runtimes the cover may use: only some, at
most so many, at most so many bytes, only some licences. :mod:`collage_engine.search.limits` says
exactly what each means; ``cost_us``, regrets and verdicts then are of the covers that keep to all
of them, and ``constraints`` in the answer says what each costs.

**Regret** of a candidate: least cost of any cover that contains it, less the least cost, both
under the pins and limits. In ``regrets`` null means that no cover contains the candidate, and
nothing else. Where the graph is too wide or the time too short for exact regrets, ``regret_bounds``
has what is only known to be at least that much (such a candidate may also be in no cover), and
``regrets_not_known`` lists the candidates of which nothing is known at all. Every measured
candidate is in exactly one of the three.

A pin holds for partitions that contain any of its nodes, so whether a candidate may be chosen
depends on that candidate alone, and several pins forbid what any of them forbids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from collage_engine.records.pin import LimitVerdict, VerdictState
from collage_engine.search.limits import LimitName, RuntimeLimits
from collage_engine.support.text import listed
from collage_engine.support.typed import Figure, decode

PLAIN = "plain"
"""The format of a value for which nothing else is said."""
HOST = "cpu"
"""The device of a candidate for which nothing else is said."""
CandidateId = int | str
_Nodes = Annotated[tuple[int, ...], msgspec.Meta(min_length=1)]
CostState = Literal["measured", "invalid", "unknown"]


class ProblemNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """It is an operator of the problem."""

    id: int
    op: str = ""
    """Says what it is to a reader of the problem; it is never searched on."""
    inputs: tuple[int, ...] = ()


class ProblemCandidate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of nodes that a toolchain could run as one partition."""

    id: CandidateId
    nodes: _Nodes
    toolchain: Annotated[str, msgspec.Meta(min_length=1)]
    cost_us: Figure | None = None
    state: CostState = "measured"
    reason: str | None = None
    device: str | None = None
    takes: dict[int, str] = {}
    gives: dict[int, str] = {}


class Transitions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What launching partitions and handing values over costs besides the candidates."""

    launch_us: Figure = 0.0
    pairs: tuple[tuple[str, str, Figure], ...] = ()
    """(from toolchain, to toolchain, us)."""
    formats: tuple[tuple[int, str, str, Figure], ...] = ()
    """(node, from format, to format, us)."""


class ProblemPin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user's constraint on the partitions that hold these nodes."""

    nodes: _Nodes
    toolchain: str | None = None
    not_toolchain: str | None = None
    device: str | None = None
    exactly: bool = False
    together: bool = False


class Problem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole search problem."""

    nodes: tuple[ProblemNode, ...]
    candidates: tuple[ProblemCandidate, ...]
    outputs: tuple[int, ...] = ()
    transitions: Transitions = Transitions()
    priority: tuple[str, ...] = ()
    pins: tuple[ProblemPin, ...] = ()
    limits: RuntimeLimits | None = msgspec.field(default=None, name="constraints")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """It says what became of a pin (an index into ``pins``)."""

    pin: int
    text: str
    """In words: ``nodes 3, 4 on onednn``."""
    state: VerdictState
    price_us: float | None = None
    """Least cost with it less least cost without it, other pins kept."""
    reason: str | None = None
    """As follows the state: ``costs 11 µs``."""
    contradicts: tuple[int, ...] = ()


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """A minimal set of pins and limits that leaves no cover."""

    reason: str
    pins: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    """The nodes for which the pins and limits leave no candidate, if there are any."""
    limits: tuple[LimitName, ...] = msgspec.field(default=(), name="constraints")
    limits_text: str = msgspec.field(default="", name="constraints_text")
    """The limits in words."""


class Infeasible(Conflict, frozen=True, kw_only=True):
    """Why there is no cover: nodes that nothing covers, or the first conflict."""

    further: tuple[Conflict, ...] = ()
    """More conflicts, which have no pin and no limit in common with the others."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The least-cost cover, or why there is none (then ``infeasible`` is set, the cover empty)."""

    cost_us: float | None = None
    lower_bound_us: float | None = None
    """No cover costs less; equals ``cost_us`` when ``optimal``."""
    optimal: bool = False
    cover: tuple[CandidateId, ...] = ()
    """In an order in which the partitions can run."""
    regrets: dict[CandidateId, float | None] = {}
    regret_bounds: dict[CandidateId, float] = {}
    """The regret is at least this."""
    regrets_not_known: tuple[CandidateId, ...] = ()
    """The measured candidates of which neither a regret nor a bound is known."""
    verdicts: tuple[Verdict, ...] = ()
    limit_verdicts: tuple[LimitVerdict, ...] = msgspec.field(default=(), name="constraints")
    states: int = 0
    seconds: float = 0.0
    infeasible: Infeasible | None = None

    @property
    def gap_us(self) -> float | None:
        """Return how much less than ``cover`` a cover could still cost, in us; 0 when optimal."""
        if self.cost_us is None or self.lower_bound_us is None:
            return None
        return max(0.0, self.cost_us - self.lower_bound_us)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as JSON values, in the public format."""
        data: dict[str, Any] = decode(msgspec.json.encode(self))
        if self.infeasible is None:
            del data["infeasible"]
            return {**data, "gap_us": self.gap_us}
        kept = ("infeasible", "verdicts", "constraints", "states", "seconds")
        return {name: data[name] for name in kept}


def toolchain_matches(pinned: str, toolchain: str) -> bool:
    """Tell whether a pin's toolchain means a candidate's: it is the same or an instance of it."""
    return toolchain == pinned or toolchain.startswith(pinned + "[")


def forbidden_by(problem: Problem, pin: ProblemPin) -> list[int]:
    """Return the indices of the candidates that a pin rules out."""
    pinned_nodes = set(pin.nodes)
    return [i for i, each in enumerate(problem.candidates) if breaks(each, pin, pinned_nodes)]


def breaks(candidate: ProblemCandidate, pin: ProblemPin, pinned_nodes: set[int]) -> bool:
    """Tell whether a candidate may not be part of a cover under a pin.

    Args:
        candidate: A candidate; one that holds none of the pin's nodes breaks nothing.
        pin: The pin.
        pinned_nodes: The pin's nodes.
    """
    if pinned_nodes.isdisjoint(candidate.nodes):
        return False
    name = candidate.toolchain
    if pin.toolchain is not None and not toolchain_matches(pin.toolchain, name):
        return True
    if pin.not_toolchain is not None and toolchain_matches(pin.not_toolchain, name):
        return True
    if pin.device is not None and (candidate.device or HOST) != pin.device:
        return True
    if pin.exactly and pinned_nodes != set(candidate.nodes):
        return True
    return pin.together and not pinned_nodes.issubset(candidate.nodes)


def describe(pin: ProblemPin) -> str:
    """Return a pin in words: ``nodes 3, 4 on onednn``."""
    nodes = nodes_in_words(pin.nodes)
    if pin.not_toolchain is not None:
        return f"{nodes} not on {pin.not_toolchain}"
    if pin.device is not None:
        return f"{nodes} on device {pin.device}"
    text = nodes
    if pin.exactly:
        text = f"exactly {nodes} as one partition"
    elif pin.together:
        text = f"{nodes} in one partition"
    return f"{text} on {pin.toolchain}" if pin.toolchain is not None else text


def nodes_in_words(nodes: Sequence[int]) -> str:
    """Return ``node 3`` or ``nodes 3, 4 and 9 more``."""
    return f"{'node' if len(nodes) == 1 else 'nodes'} {listed(list(map(str, nodes)))}"
