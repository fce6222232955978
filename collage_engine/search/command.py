"""What ``collage search`` does: it answers a problem that is given as JSON text."""

from __future__ import annotations

from typing import Any

import msgspec

from collage_engine.records.errors import UsageError
from collage_engine.records.typed import decode
from collage_engine.search.api import Search, k_best, solve
from collage_engine.search.check import CoverCheck, examine_cover
from collage_engine.search.problem import Answer, CandidateId, Problem
from collage_engine.search.problem_json import read_json, read_problem
from collage_engine.search.ranked_covers import RankedCover


class AnswerDocument(Answer, frozen=True, kw_only=True):
    """The answer as JSON: without a cover it has no cost, bound, cover or regrets."""

    gap_us: float | None = None
    """How much less than ``cover`` a cover could still cost; 0 when optimal."""
    ranked_covers: tuple[RankedCover, ...] = ()
    """The k best covers, where they were asked for."""


class CoverPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A candidate of a cover by what it is, where its id is not known."""

    nodes: tuple[int, ...]
    """In any order."""
    toolchain: str


class CoverDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A cover in a file: an answer of ``collage search --json`` is one."""

    cover: tuple[CandidateId | CoverPart, ...]


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


def main_check(text: str | bytes, cover: str | bytes) -> CoverCheck:
    """Return whether a cover given as JSON text is one of a problem given as JSON text.

    Args:
        text: The problem.
        cover: A list of candidates, or an object whose ``cover`` is one; each candidate by its id,
            or by its nodes (in any order) and toolchain.

    Raises:
        UsageError: One of them is malformed; the sentence says where (exit status 2).
    """
    problem = read_problem(text)
    named = read_json(
        cover, tuple[CandidateId | CoverPart, ...] | CoverDocument, whole="the placement"
    )
    parts = named.cover if isinstance(named, CoverDocument) else named
    return examine_cover(problem, [_id_of(problem, part) for part in parts])


def _id_of(problem: Problem, part: CandidateId | CoverPart) -> CandidateId:
    """Return the id of a candidate of a cover.

    Raises:
        UsageError: No candidate, or more than one, has these nodes and this toolchain.
    """
    if not isinstance(part, CoverPart):
        return part
    nodes = set(part.nodes)
    meant = [
        c.id for c in problem.candidates if c.toolchain == part.toolchain and set(c.nodes) == nodes
    ]
    if len(meant) == 1:
        return meant[0]
    what = f"nodes {', '.join(map(str, sorted(nodes)))} on {part.toolchain}"
    if not meant:
        raise UsageError(f"the placement: no candidate has exactly {what}")
    ids = ", ".join(map(str, meant))
    raise UsageError(f"the placement: candidates {ids} all have {what}; name one by its id")


DOCUMENTS = {"problem": Problem, "answer": AnswerDocument, "check": CoverCheck}
"""The types of what ``collage search`` reads and prints."""
