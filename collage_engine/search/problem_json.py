"""Reading a search problem from JSON, and answering it as ``collage search`` does.

msgspec's sentences say which value has another type than :mod:`collage_engine.search.problem` has;
what is wrong beyond types and ranges is found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import msgspec

from collage_engine.search.api import RankedCover, Search, k_best, solve
from collage_engine.search.problem import (
    Answer,
    Problem,
    ProblemPin,
)
from collage_engine.support.errors import UsageError
from collage_engine.support.typed import decode


def read_problem(text: str | bytes) -> Problem:
    """Decode and validate a problem's JSON.

    Raises:
        UsageError: It is malformed; the sentence says what is wrong, and where.
    """
    try:
        problem: Problem = decode(text, Problem)
    except msgspec.DecodeError as error:
        raise UsageError(f"the problem: {error}") from error
    nodes = _check_nodes(problem)
    _check_known("outputs", problem.outputs, nodes)
    _check_once("candidates", [str(candidate.id) for candidate in problem.candidates])
    for index, candidate in enumerate(problem.candidates):
        where = f"candidates[{index}]"
        _check_known(f"{where}.nodes", candidate.nodes, nodes)
        _check_once(f"{where}.nodes", candidate.nodes)
        if candidate.state == "measured" and candidate.cost_us is None:
            raise UsageError(f"{where}.cost_us: a measured candidate needs a cost")
    _check_once("transitions.pairs", [pair[:2] for pair in problem.transitions.pairs])
    _check_once("transitions.formats", [entry[:3] for entry in problem.transitions.formats])
    for index, pin in enumerate(problem.pins):
        _check_pin(pin, f"pins[{index}]", nodes)
    return problem


def problem_from(data: object) -> Problem:
    """Return the problem in these JSON values (dicts and lists), validated.

    Raises:
        UsageError: It is malformed; the sentence says what is wrong, and where.
    """
    return read_problem(msgspec.json.encode(data))


def _check_known(where: str, nodes: Iterable[int], known: Set[int]) -> None:
    for node in nodes:
        if node not in known:
            raise UsageError(f"{where}: there is no node {node}")


def _check_once(where: str, names: Iterable[object]) -> None:
    seen = set()
    for index, name in enumerate(names):
        if name in seen:
            raise UsageError(f"{where}[{index}]: {name} is listed twice")
        seen.add(name)


def _check_nodes(problem: Problem) -> set[int]:
    """Return the ids of the nodes; each has to come after what it takes."""
    _check_once("nodes", [node.id for node in problem.nodes])
    before: set[int] = set()
    for index, node in enumerate(problem.nodes):
        for producer in node.inputs:
            if producer not in before:
                raise UsageError(
                    f"nodes[{index}].inputs: there is no node {producer} before node {node.id}; "
                    "list nodes in topological order"
                )
        before.add(node.id)
    return before


def _check_pin(pin: ProblemPin, where: str, nodes: Set[int]) -> None:
    _check_known(f"{where}.nodes", pin.nodes, nodes)
    shapes = [n for n in ("exactly", "together") if getattr(pin, n)]
    others = [n for n in ("not_toolchain", "device") if getattr(pin, n) is not None]
    demands = shapes + others + (["toolchain"] if pin.toolchain is not None else [])
    if not demands:
        raise UsageError(
            f"{where}: it says nothing; give toolchain, not_toolchain, device, exactly or together"
        )
    if len(shapes) + len(others) > 1 or (others and pin.toolchain is not None):
        raise UsageError(f"{where}: {' and '.join(demands)} are two pins; list them separately")


class AnswerDocument(Answer, frozen=True, kw_only=True):
    """The answer as JSON: without a cover it has no cost, bound, cover or regrets."""

    gap_us: float | None = None
    """How much less than ``cover`` a cover could still cost; 0 when optimal."""
    ranked_covers: tuple[RankedCover, ...] = ()
    """The k best covers, where they were asked for."""


def main_search(
    text: str | bytes, *, time_limit_s: float | None = None, ranked: int | None = None
) -> dict[str, Any]:
    """Return the answer to a problem given as JSON text, feasible or not, as JSON values.

    Args:
        text: The problem.
        time_limit_s: When the answer comes, in seconds; see :func:`.api.solve`.
        ranked: How many of the best covers are wanted too; they may take as long again.

    Raises:
        UsageError: The problem is malformed; the sentence says where (exit status 2).
    """
    problem = read_problem(text)
    search = Search(problem, time_limit_s=time_limit_s)
    answer = solve(problem, time_limit_s=time_limit_s, previous=search)
    document = answer.as_dict()
    if ranked is not None and answer.infeasible is None:
        covers = k_best(problem, ranked, previous=search)
        document["ranked_covers"] = decode(msgspec.json.encode(covers))
    return document


DOCUMENTS = {"problem": Problem, "answer": AnswerDocument}
"""The types of what ``collage search`` reads and prints."""
