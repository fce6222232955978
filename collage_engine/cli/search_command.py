"""``collage search``: a search problem from a file or a pipe, its answer on standard output."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from collage_engine.cli.output import print_json
from collage_engine.cli.screen import ERR, say
from collage_engine.search.problem_json import main_search
from collage_engine.support.errors import UsageError
from collage_engine.support.files import LARGEST_TEXT, read_file

STANDARD_INPUT = "-"


def search(options: argparse.Namespace) -> int:
    """Answer a problem; returns the exit status."""
    text = _read(options.problem)
    try:
        with ERR.status(f"searching, at most about {options.time_limit:g} s (--time-limit)"):
            answer = main_search(text, time_limit_s=options.time_limit, ranked=options.k_best)
    except UsageError as error:
        name = "standard input" if options.problem == STANDARD_INPUT else options.problem
        raise UsageError(f"{name}: {error}") from error
    if options.json:
        print_json(answer)
    else:
        _print_answer(answer)
    return 0


def _read(name: str) -> bytes:
    """Return what is in a file, or on standard input."""
    try:
        if name != STANDARD_INPUT:
            return read_file(name, LARGEST_TEXT)
        data = sys.stdin.buffer.read(LARGEST_TEXT + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{name}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > LARGEST_TEXT:
        raise UsageError(f"standard input has more than {LARGEST_TEXT >> 20} MiB")
    return data


def _print_answer(answer: dict[str, Any]) -> None:
    if "infeasible" in answer:
        infeasible = answer["infeasible"]
        say(f"no placement exists: {infeasible['reason']}")
        for conflict in infeasible["further"]:
            say(f"besides: {conflict['reason']}")
        return
    if answer["cost_us"] is None:
        say("No placement was found in time, and none is proved not to exist (--time-limit).")
        return
    bound = f"at least {answer['lower_bound_us']} µs"
    bound = "the least" if answer["optimal"] else bound
    say(f"The placement costs {answer['cost_us']} µs ({bound}).")
    say(f"Its candidates are {', '.join(map(str, answer['cover']))}")
    for verdict in (*answer["verdicts"], *answer["constraints"]):
        say(f"{verdict['text']}: {verdict['state']}, {verdict['reason']}")
    for rank, ranked in enumerate(answer.get("ranked_covers", ()), start=1):
        names = ", ".join(map(str, ranked["cover"]))
        say(f"{rank}. {ranked['cost_us']} µs, {ranked['regret_us']} µs more: {names}")
