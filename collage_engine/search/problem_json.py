"""Reading a search problem from JSON, with errors that say where and why it is malformed."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from collage_engine.records.errors import UsageError
from collage_engine.records.typed import decode
from collage_engine.search.limits import check_limits
from collage_engine.search.problem import Problem, ProblemCandidate, ProblemPin

MOST_US = 1e15
"""The largest cost in microseconds: thirty years (chosen). Sums of larger ones would come near
``pricing.IMPOSSIBLE``."""


def read_problem(text: str | bytes) -> Problem:
    """Decode and validate a problem's JSON.

    Raises:
        UsageError: It is malformed; the sentence says what is wrong, and where.
    """
    problem: Problem = read_json(text, Problem, whole="the problem")
    validate(problem)
    return problem


def read_json(text: str | bytes, kind: Any, *, whole: str) -> Any:
    """Decode JSON as a value of a type, or say what is wrong with it.

    Args:
        text: The JSON document.
        kind: The type.
        whole: What the document is called in a sentence.

    Raises:
        UsageError: It is malformed; the sentence says what is wrong, and where.
    """
    try:
        return decode(text, kind)
    except msgspec.ValidationError as error:
        raise UsageError(_located(str(error), whole)) from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{whole} is not JSON: {_not_json(str(error), text)}") from error


def problem_from(data: object) -> Problem:
    """Return the problem in these JSON values (dicts and lists), validated.

    Raises:
        UsageError: It is malformed; the sentence says what is wrong, and where.
    """
    try:
        encoded = msgspec.json.encode(data)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the problem is not made of JSON values: {error}") from error
    return read_problem(encoded)


def _located(message: str, whole: str) -> str:
    """Return in words what a value should be, with its place in the document.

    Args:
        message: What msgspec says: ``Expected `int`, got `str` - at `$.nodes[0].id```.
        whole: What the document is called.
    """
    found = re.search(r" - at `(key` in `)?\$?\.?([^`]*)`$", message)
    where = whole if found is None else found.group(2) or whole
    if found is not None and found.group(1):
        where += " (a name of a field)"
    said = message if found is None else message[: found.start()]
    for pattern, words in _PATTERNS:
        matched = re.fullmatch(pattern, said)
        if matched is not None:
            parts = [_type_in_words(part) for part in matched.groups()]
            return f"{where}: {words.format(*parts)}"
    return f"{where}: this value is not what it must be; `collage search --schema` shows what is"


_PATTERNS = (
    (r"Expected `([^`]*)`, got `([^`]*)`", "{0} is expected here, not {1}"),
    (r"Expected `array` of length (\d+)(?:, got \d+)?", "a list of {0} values is expected here"),
    (r"Object missing required field `([^`]*)`", "the field {0} is missing"),
    (r"Object contains unknown field `([^`]*)`", "there is no field {0}"),
    (r"(?:Number|Integer|Float) (?:value )?out of range", "the number is too large"),
    (r"Invalid enum value (.*)", "{0} is none of the values that it may have"),
)
"""What msgspec says of values of wrong types, and the same as a sentence."""
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}


def _type_in_words(name: str) -> str:
    """Return ``a whole number or null`` for ``int | null``; what is no type stays as it is."""
    parts = name.split(" | ")
    if not all(part in _TYPES for part in parts):
        return name
    return " or ".join(_TYPES[part] for part in parts)


def _not_json(message: str, text: str | bytes) -> str:
    """Return where a text stops being JSON, in lines and columns."""
    found = re.search(r"\(byte (\d+)\)", message)
    if found is None:
        ends_early = "truncated" in message
        return "it ends too early" if ends_early else message.removeprefix("JSON is malformed: ")
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    before = data[: int(found.group(1))]
    line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
    what = message[: found.start()].removeprefix("JSON is malformed: ").strip()
    return f"{what} in line {line}, column {column}"


def _amount(value: float | None, where: str) -> None:
    if value is None:
        return
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{where}: {value} is not a finite number of microseconds, 0 or more")
    if value > MOST_US:
        raise UsageError(f"{where}: {value} is more than {MOST_US:.0e} microseconds")


def validate(problem: Problem) -> None:
    """Check that a problem is well formed.

    Raises:
        UsageError: It is malformed; the sentence says what is wrong, and where.
    """
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
    if problem.limits is not None:
        check_limits(problem.limits)


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
    """Return a node through which a path leaves a set and comes back; None when it is convex.

    Args:
        places: The set's places, ascending.
        inputs: Per place the places of its producers.
    """
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
    demands = shapes + others + (["toolchain"] if pin.toolchain is not None else [])
    if not demands:
        raise UsageError(
            f"{where}: it says nothing; give toolchain, not_toolchain, device, exactly, "
            "together or unsplit"
        )
    if len(shapes) + len(others) > 1 or (others and pin.toolchain is not None):
        raise UsageError(f"{where}: {' and '.join(demands)} are two pins; list them separately")
    if pin.unsplit:
        ends = set(pin.nodes)
        if len(ends) != 2 or not any(
            set(problem.nodes[place[node]].inputs) & (ends - {node}) for node in ends
        ):
            raise UsageError(f"{where}.nodes: unsplit wants the two ends of an edge")
