"""What ``collage search`` does: it answers a problem that is given as JSON text."""

from __future__ import annotations

from typing import Any

import msgspec

from collage_engine.search.api import Search, k_best, solve
from collage_engine.search.check import CoverCheck, examine_cover
from collage_engine.search.problem import Answer, CandidateId, Problem
from collage_engine.search.problem_json import read_json, read_problem
from collage_engine.search.ranked_covers import RankedCover
from collage_engine.support.typed import decode


class AnswerDocument(Answer, frozen=True, kw_only=True):
    """The answer as JSON: without a cover it has no cost, bound, cover or regrets."""

    gap_us: float | None = None
    """How much less than ``cover`` a cover could still cost; 0 when optimal."""
    ranked_covers: tuple[RankedCover, ...] = ()
    """The k best covers, where they were asked for."""


class CoverDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A cover in a file: an answer of ``collage search --json`` is one."""

    cover: tuple[CandidateId, ...]


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
        cover: A list of the ids of candidates, or an object whose ``cover`` is one.

    Raises:
        UsageError: One of them is malformed; the sentence says where (exit status 2).
    """
    problem = read_problem(text)
    named = read_json(cover, tuple[CandidateId, ...] | CoverDocument, whole="the placement")
    return examine_cover(problem, named.cover if isinstance(named, CoverDocument) else named)


DOCUMENTS = {"problem": Problem, "answer": AnswerDocument, "check": CoverCheck}
"""The types of what ``collage search`` reads and prints."""
