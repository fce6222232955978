"""The search problem and its answer: public formats, exact meaning, validation.

What the words mean here, exactly
---------------------------------
**Nodes** are operators, listed in topological order; ``inputs`` are producing nodes only, and
repeating one changes nothing. Every listed node is covered, also one that reaches no output.

**Candidates** are convex node sets (no path leaves and comes back), connected or not, with any
number of exits. Only ``measured`` ones are chosen; ``invalid`` and ``unknown`` ones never.

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

All costs are finite, at least 0 and at most 1e15 us. They are summed exactly, in units of 1e-9
us, so that equal is equal. Covers of exactly equal cost are settled by ``priority``: least sum,
over nodes, of the place of the node's toolchain in that list (one that is not listed comes after
all that are); then fewer partitions; then the order of the candidates in the problem.

**Pins** hold for partitions that contain any of the pin's nodes: ``toolchain`` (a toolchain, or
an instance of it: ``onnxruntime`` also takes ``onnxruntime[level=basic]``), ``not_toolchain``,
``device`` (a candidate without one is on ``cpu``), ``exactly`` (the partition is these nodes, no
more, no less; with ``toolchain``: of that one), ``together`` (one partition holds them all,
others welcome), ``unsplit`` (together, for the two ends of an edge).

**Constraints** (optional) limit which runtimes the cover uses: only some, at most so many, bytes,
licences, pairs that cannot share a process. :mod:`collage_engine.search.limits` says exactly what
each means; ``cost_us``, regrets and verdicts then are of the covers that keep to all of them, and
``constraints`` in the answer says what each costs.

**Drift** (optional) is how far apart medians of one piece of work lie that were measured at two
times, besides their spreads, as a share. It takes part in what is shown as a tie, and in the
probabilities of :mod:`collage_engine.search.doubt`; never in the choice.

**Regret** of a candidate: least cost of any cover that contains it, less the least cost, both
under the pins; null when it is in no cover. ``regret_bounds`` has what is only known to be at
least that much: unmeasured candidates with ``lower_bound_us``, and, where the graph is too wide
for exact regrets, the candidates that ``regrets`` leaves out.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import msgspec

from collage_engine.records.errors import UsageError
from collage_engine.search.limits import (
    ConstraintName,
    Constraints,
    ConstraintVerdict,
    check_constraints,
)

PLAIN = "plain"
HOST = "cpu"
MOST_US = 1e15
"""Of a cost: thirty years. Sums of larger ones would come near what stands for impossible."""
CandidateId = int | str
State = Literal["measured", "invalid", "unknown"]
Kind = Literal[
    "elementwise", "broadcast", "injective", "reduction", "anchor",
    "out-elementwise-fusable", "tuple", "opaque",
]  # fmt: skip


class ProblemNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator. ``op`` and ``kind`` are only shown, never searched on."""

    id: int
    op: str = ""
    kind: Kind = "opaque"
    inputs: tuple[int, ...] = ()


class ProblemCandidate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of nodes that a toolchain could run as one partition."""

    id: CandidateId
    nodes: tuple[int, ...]
    toolchain: str
    cost_us: float | None = None
    state: State = "measured"
    spread_us: float | tuple[float, float] | None = None
    """One number: the cost lies within ± that. Two: its 20th and 80th percentile."""
    lower_bound_us: float | None = None
    reason: str | None = None
    device: str | None = None
    takes: dict[int, str] = {}
    gives: dict[int, str] = {}


class Transitions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What running and handing on costs besides the candidates."""

    launch_us: float = 0.0
    pairs: tuple[tuple[str, str, float], ...] = ()
    """(from toolchain, to toolchain, us)"""
    formats: tuple[tuple[int, str, str, float], ...] = ()
    """(node, from format, to format, us)"""


class ProblemPin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A demand on the partitions that hold these nodes."""

    nodes: tuple[int, ...]
    toolchain: str | None = None
    not_toolchain: str | None = None
    device: str | None = None
    exactly: bool = False
    together: bool = False
    unsplit: bool = False


class Problem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole search problem. Build it with :func:`read_problem`, or :func:`validate` your own."""

    nodes: tuple[ProblemNode, ...]
    candidates: tuple[ProblemCandidate, ...]
    outputs: tuple[int, ...] = ()
    transitions: Transitions = Transitions()
    priority: tuple[str, ...] = ()
    pins: tuple[ProblemPin, ...] = ()
    constraints: Constraints | None = None
    drift: float = 0.0
    """How far apart medians of separate sittings lie besides their spreads, a share: for ties."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a pin (an index into ``pins``)."""

    pin: int
    state: Literal["honoured", "infeasible", "pending"]
    price_us: float | None = None
    """Least cost with it less least cost without it, other pins kept."""
    reason: str | None = None
    contradicts: tuple[int, ...] = ()


class Infeasible(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no cover: a minimal set of pins and limits that contradict each other, or
    nodes."""

    reason: str
    pins: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    constraints: tuple[ConstraintName, ...] = ()


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
    verdicts: tuple[Verdict, ...] = ()
    constraints: tuple[ConstraintVerdict, ...] = ()
    states: int = 0
    seconds: float = 0.0
    infeasible: Infeasible | None = None

    @property
    def gap_us(self) -> float | None:
        """How much better than ``cover`` a cover could still be; 0 when optimal."""
        if self.cost_us is None or self.lower_bound_us is None:
            return None
        return max(0.0, self.cost_us - self.lower_bound_us)

    def as_dict(self) -> dict[str, Any]:
        """The answer as JSON values, in the public format."""
        data = msgspec.json.decode(msgspec.json.encode(self))
        if self.infeasible is None:
            del data["infeasible"]
            return {**data, "gap_us": self.gap_us}
        kept = ("infeasible", "verdicts", "constraints", "states", "seconds")
        return {name: data[name] for name in kept}


def toolchain_matches(wanted: str, toolchain: str) -> bool:
    """Whether a pin's toolchain means this candidate's: equal, or an instance of it."""
    return toolchain == wanted or toolchain.startswith(wanted + "[")


def read_problem(text: str | bytes) -> Problem:
    """Decode and validate a problem's JSON; :class:`UsageError` says what is wrong, and where."""
    try:
        problem = msgspec.json.decode(text, type=Problem)
    except msgspec.ValidationError as error:
        raise UsageError(_located(str(error))) from error
    except msgspec.DecodeError as error:
        raise UsageError(f"the problem is not JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise UsageError("the problem is not JSON: it is not UTF-8 text") from error
    validate(problem)
    return problem


def problem_from(data: object) -> Problem:
    """The problem in these JSON values (dicts and lists), validated."""
    try:
        encoded = msgspec.json.encode(data)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the problem is not made of JSON values: {error}") from error
    return read_problem(encoded)


def _located(message: str) -> str:
    found = re.search(r" - at `(?:key in )?`?\$?\.?([^`]*)`$", message)
    if found is None:
        return f"problem: {message}"
    return f"{found.group(1) or 'problem'}: {message[: found.start()]}"


def _amount(value: float | None, where: str) -> None:
    if value is None:
        return
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{where}: {value} is not a finite number of microseconds, 0 or more")
    if value > MOST_US:
        raise UsageError(f"{where}: {value} is more than {MOST_US:.0e} microseconds")


def validate(problem: Problem) -> None:
    """Raise :class:`UsageError` with the place and the reason when the problem is malformed."""
    place = _check_nodes(problem)
    for index, output in enumerate(problem.outputs):
        if output not in place:
            raise UsageError(f"outputs[{index}]: there is no node {output}")
    _check_candidates(problem, place)
    _check_transitions(problem, place)
    if len(set(problem.priority)) != len(problem.priority):
        raise UsageError("priority: a toolchain is listed twice")
    for index, pin in enumerate(problem.pins):
        _check_pin(problem, pin, f"pins[{index}]", place)
    if not (math.isfinite(problem.drift) and problem.drift >= 0):
        raise UsageError(f"drift: {problem.drift} is not a share, 0 or more")
    if problem.constraints is not None:
        check_constraints(problem.constraints)


def _check_nodes(problem: Problem) -> dict[int, int]:
    place: dict[int, int] = {}
    known = {node.id for node in problem.nodes}
    for index, node in enumerate(problem.nodes):
        if node.id in place:
            raise UsageError(f"nodes[{index}].id: node {node.id} is listed twice")
        for producer in node.inputs:
            if producer == node.id:
                raise UsageError(f"nodes[{index}].inputs: node {node.id} takes itself")
            if producer not in place:
                why = (
                    f"node {producer} comes later; list nodes in topological order"
                    if producer in known
                    else f"there is no node {producer}"
                )
                raise UsageError(f"nodes[{index}].inputs: {why}")
        place[node.id] = index
    return place


def _check_candidates(problem: Problem, place: dict[int, int]) -> None:
    inputs = [tuple({place[i] for i in node.inputs}) for node in problem.nodes]
    ids: set[str] = set()
    convex: dict[tuple[int, ...], int | None] = {}
    for index, candidate in enumerate(problem.candidates):
        where = f"candidates[{index}]"
        name = str(candidate.id)
        if name in ids:
            raise UsageError(f"{where}.id: candidate {name} is listed twice")
        ids.add(name)
        if not candidate.toolchain:
            raise UsageError(f"{where}.toolchain: empty; name who runs the candidate")
        if not candidate.nodes:
            raise UsageError(f"{where}.nodes: empty; a candidate covers at least one node")
        places = []
        for node in candidate.nodes:
            at = place.get(node)
            if at is None:
                raise UsageError(f"{where}.nodes: there is no node {node}")
            places.append(at)
        places.sort()
        key = tuple(places)
        if key not in convex:
            if len(set(key)) != len(key):
                raise UsageError(f"{where}.nodes: a node is listed twice")
            convex[key] = path_outside(key, inputs)
        outside = convex[key]
        if outside is not None:
            node = problem.nodes[outside].id
            raise UsageError(
                f"{where}.nodes: node {node} is not convex with the others: a path leaves the "
                f"candidate and comes back through node {node}"
            )
        if candidate.state == "measured" and candidate.cost_us is None:
            raise UsageError(f"{where}.cost_us: a measured candidate needs a cost")
        _amount(candidate.cost_us, f"{where}.cost_us")
        _amount(candidate.lower_bound_us, f"{where}.lower_bound_us")
        spread = candidate.spread_us
        if isinstance(spread, tuple):
            _amount(spread[0], f"{where}.spread_us[0]")
            _amount(spread[1], f"{where}.spread_us[1]")
            if spread[0] > spread[1]:
                raise UsageError(f"{where}.spread_us: the low end is above the high end")
        else:
            _amount(spread, f"{where}.spread_us")
        if candidate.gives or candidate.takes:
            _check_formats(candidate, where, place, key, inputs)


def _check_formats(
    candidate: ProblemCandidate,
    where: str,
    place: dict[int, int],
    places: tuple[int, ...],
    inputs: list[tuple[int, ...]],
) -> None:
    inside = set(places)
    for node in candidate.gives:
        if place.get(node) not in inside:
            raise UsageError(f"{where}.gives: node {node} is not in the candidate")
    taken = {i for at in places for i in inputs[at]} | inside
    for node in candidate.takes:
        if place.get(node) not in taken:
            raise UsageError(f"{where}.takes: node {node} is not an input of the candidate")


def path_outside(places: tuple[int, ...], inputs: list[tuple[int, ...]]) -> int | None:
    """A node through which a path leaves this ascending set and comes back; None when convex."""
    low, high = places[0], places[-1]
    if high - low + 1 == len(places):
        return None
    inside = set(places)
    after: set[int] = set()
    for at in range(low + 1, high + 1):
        if at in inside:
            for producer in inputs[at]:
                if producer in after:
                    return producer
        elif any(i in inside or i in after for i in inputs[at]):
            after.add(at)
    return None


def _check_transitions(problem: Problem, place: dict[int, int]) -> None:
    transitions = problem.transitions
    _amount(transitions.launch_us, "transitions.launch_us")
    pairs: set[tuple[str, str]] = set()
    for index, (source, target, us) in enumerate(transitions.pairs):
        _amount(us, f"transitions.pairs[{index}]")
        if (source, target) in pairs:
            raise UsageError(f"transitions.pairs[{index}]: {source} to {target} is listed twice")
        pairs.add((source, target))
    formats: set[tuple[int, str, str]] = set()
    for index, (node, have, want, us) in enumerate(transitions.formats):
        _amount(us, f"transitions.formats[{index}]")
        if node not in place:
            raise UsageError(f"transitions.formats[{index}]: there is no node {node}")
        if (node, have, want) in formats:
            raise UsageError(
                f"transitions.formats[{index}]: {have} to {want} of node {node} is listed twice"
            )
        formats.add((node, have, want))


def _check_pin(problem: Problem, pin: ProblemPin, where: str, place: dict[int, int]) -> None:
    if not pin.nodes:
        raise UsageError(f"{where}.nodes: empty; a pin is on at least one node")
    for node in pin.nodes:
        if node not in place:
            raise UsageError(f"{where}.nodes: there is no node {node}")
    shapes = [n for n in ("exactly", "together", "unsplit") if getattr(pin, n)]
    others = [n for n in ("not_toolchain", "device") if getattr(pin, n) is not None]
    said = shapes + others + (["toolchain"] if pin.toolchain is not None else [])
    if not said:
        raise UsageError(
            f"{where}: it says nothing; give toolchain, not_toolchain, device, exactly, "
            "together or unsplit"
        )
    if len(shapes) + len(others) > 1 or (others and pin.toolchain is not None):
        raise UsageError(f"{where}: {' and '.join(said)} are two pins; list them separately")
    if pin.unsplit:
        ends = set(pin.nodes)
        edge = any(set(problem.nodes[place[node]].inputs) & (ends - {node}) for node in ends)
        if len(ends) != 2 or not edge:
            raise UsageError(f"{where}.nodes: unsplit wants the two ends of an edge")
