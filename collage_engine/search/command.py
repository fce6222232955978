"""``collage search PROBLEM.json``: a problem's text in, the answer as JSON values out."""

from __future__ import annotations

from typing import Any

from collage_engine.search.api import solve
from collage_engine.search.reading import read_problem


def main_search(text: str | bytes, *, time_limit_s: float | None = None) -> dict[str, Any]:
    """The answer to a problem given as JSON text, feasible or not.

    Raises ``UsageError`` (exit status 2) with a sentence that says where it is malformed.
    """
    return solve(read_problem(text), time_limit_s=time_limit_s).as_dict()
