"""``python -m tests.fuzz [SUBJECT …] [--cases N | --seconds S] [--first N] [--keep FOLDER]``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.fuzz import CASES, cases_of


def main() -> int:
    """Run campaigns and print what they find; status 1 where anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(CASES))
    parser.add_argument("--cases", type=int, help="of each subject (default: those of CI)")
    parser.add_argument("--seconds", type=float, help="for each subject, instead of --cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--keep", type=Path, help="a folder for the files of findings")
    options = parser.parse_args()
    found = 0
    for name in options.subjects or CASES:
        cases = options.cases or (CASES[name] if options.seconds is None else 10**9)
        end = time.monotonic() + (options.seconds or float("inf"))
        done = 0
        for finding in cases_of(name, range(options.first, options.first + cases), options.keep):
            done += 1
            if finding is not None:
                found += 1
                print(finding, flush=True)
            if time.monotonic() > end:
                break
        print(f"{name}: {done} cases", flush=True)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
