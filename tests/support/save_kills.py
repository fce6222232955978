"""Kills processes that save a session over and over: the file is whole, old or new, at any moment.

``python -m tests.support.save_kills 40 --seed 1`` does it long; a test does a few.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from collage_engine.records import files
from collage_engine.records.errors import SessionError
from collage_engine.session.file import load_session
from tests.support.full_documents import full_session

ROOT = Path(__file__).resolve().parents[2]
WRITER = """
import itertools, sys
from collage_engine.session.file import load_session, save_session
document = load_session(sys.argv[1])
print("ready", flush=True)
for number in itertools.count():
    document.runs[-1].note = str(number) * 1000
    save_session(document, sys.argv[1])
"""
LONGEST_S = 0.5
"""Seconds of saving within which the writer is killed; chosen: it saves some twenty times."""


def kill_writers(folder: Path, count: int, seed: int) -> tuple[list[str], int]:
    """Kill so many writers of one session, one after the other.

    Args:
        folder: An empty folder.
        count: How many.
        seed: Of the moments.

    Returns:
        What is wrong with the session afterwards, and how many kills left an unfinished file beside
        it, which the next writer must have removed.
    """
    moments = random.Random(seed)
    path = folder / "s.collage"
    path.write_bytes(full_session())
    wrong, unfinished = [], 0
    for number in range(count):
        before = set(folder.iterdir())
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert writer.stdout is not None
        if not writer.stdout.readline():
            wrong.append(f"kill {number}: the session could not be opened for writing")
        time.sleep(moments.uniform(0.0, LONGEST_S))
        writer.kill()
        writer.wait()
        writer.stdout.close()
        unfinished += bool(set(folder.iterdir()) - before)
        try:
            document = load_session(path)
        except SessionError as error:
            wrong.append(f"kill {number}: {error}")
            continue
        if len(document.runs) != 2:
            wrong.append(f"kill {number}: it has {len(document.runs)} runs of 2")
    for left in folder.iterdir():  # the next writer believes that a minute has passed
        os.utime(left, (time.time() - 2 * files.JOB_S,) * 2)
    files.remove_unfinished(path)
    left_over = sorted(each.name for each in folder.iterdir() if each != path)
    if left_over:
        wrong.append(f"left behind: {left_over}")
    return wrong, unfinished


def main() -> int:
    """Do a campaign and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="collage-saves-") as folder:
        wrong, unfinished = kill_writers(Path(folder), options.count, options.seed)
    print(f"{options.count} writers killed, {unfinished} of them with an unfinished file")
    print("\n".join([*wrong, f"{len(wrong)} faults"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
