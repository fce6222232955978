"""``python -m tests.fuzz [SUBJECT …] [--first N] [--cases N] [--keep FOLDER]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.campaign import campaign
from tests.fuzz.subjects import SUBJECTS


def main() -> int:
    """Run campaigns and print what they find; status 1 where anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, help="of each subject (default: those of CI)")
    parser.add_argument("--keep", type=Path, help="a folder for the files of findings")
    options = parser.parse_args()
    found = 0
    for name in options.subjects or SUBJECTS:
        cases = options.cases or SUBJECTS[name].cases
        for finding in campaign(name, range(options.first, options.first + cases), options.keep):
            found += 1
            print(finding, flush=True)
        print(f"{name}: {cases} cases", flush=True)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
