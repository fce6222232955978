"""What ``collage search PROBLEM.json`` does: it answers a problem that is given as JSON text."""

from __future__ import annotations

from typing import Any

from collage_engine.search.api import solve
from collage_engine.search.problem_json import read_problem


def main_search(text: str | bytes, *, time_limit_s: float | None = None) -> dict[str, Any]:
    """Return the answer to a problem given as JSON text, feasible or not, as JSON values.

    Args:
        text: The problem.
        time_limit_s: When the answer comes, in seconds; see :func:`.api.solve`.

    Raises:
        UsageError: The problem is malformed; the sentence says where (exit status 2).
    """
    return solve(read_problem(text), time_limit_s=time_limit_s).as_dict()
