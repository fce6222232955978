"""Runs cases in a child process and judges what became of them.

A case passes when its commands end in time, in bounded memory, and with status 0 or one clear
sentence. It is made from its subject's name and its number alone, so a finding can be made again:

    python -m tests.fuzz model --first 17 --cases 1 --keep found
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.subjects import SUBJECTS

ROOT = Path(__file__).resolve().parents[2]
CASE_S = 60.0
"""Seconds that a case may take; chosen: a hundred times what the slowest good one takes alone."""
CASE_BYTES = 1 << 30
"""Memory that a case may take beyond what the child had; chosen. The files have kilobytes."""
LEAK_BYTES = 400 << 20
"""Memory that all cases of a campaign of every change may leave behind; chosen."""
LONGEST = 1000
"""Characters of a sentence that a person still reads; chosen. What a library says may follow our
words, on the same line."""
WRONG = re.compile(
    r"Traceback \(most recent|a defect of Collage|the engine failed|Check failed|InternalError"
    r"|\b(Key|Index|Type|Value|Attribute|Assertion|Runtime|Overflow|ZeroDivision|Memory|Unicode\w*|"
    r"Recursion)Error\b"
)
"""What no sentence for a person holds."""
NO_PLACEMENT = "This is no placement as asked for"
"""Begins the answer, with status 1, of ``collage search --check`` to a cover that is wrong."""
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")
"""Characters that could change a terminal."""


@dataclass(frozen=True)
class Finding:
    """A case that did not end well."""

    subject: str
    case: int
    what: str

    def __str__(self) -> str:
        return f"{self.subject} {self.case}: {self.what}"


class Child:
    """The process that reads the files; started again where a case ended it."""

    def __init__(self, cache: Path) -> None:
        self._environment = {
            **os.environ,
            "COLLAGE_CACHE_DIR": str(cache),
            "PYTHONPATH": str(ROOT),
            "PYTHONFAULTHANDLER": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, commands: list[list[str]]) -> dict[str, Any] | str:
        """What became of the commands, or how the child ended."""
        process = self._process = self._process or subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=self._environment,
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"commands": commands}).encode() + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], CASE_S)
        line = process.stdout.readline() if ready else b""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        if ready:
            ended = f"the process ended with status {process.wait()}"
        else:
            ended = f"not done after {CASE_S:g} s"
        self.close()
        return ended

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def campaign(subject: str, numbers: range, keep: Path | None = None) -> Iterator[Finding | None]:
    """Run cases of a subject; one finding, or None, for each.

    Args:
        subject: a name in ``SUBJECTS``.
        numbers: the cases.
        keep: a folder for the files of cases that did not end well.
    """
    about = SUBJECTS[subject]
    with tempfile.TemporaryDirectory(prefix="collage-fuzz-") as scratch:
        child = Child(Path(scratch) / "cache")
        first = before = 0
        try:
            for number in numbers:
                folder = Path(scratch) / str(number)
                folder.mkdir()
                path = about.make(Random(f"{subject} {number}"), folder)
                answer = child.ask(about.commands(path))
                what = answer if isinstance(answer, str) else judged(answer, before)
                if isinstance(answer, str):
                    first = before = 0
                else:
                    before = answer["rss"]
                    # The first cases load the libraries.
                    first = before if number - numbers.start < 20 else first
                    if (
                        what is None
                        and first
                        and before - first > LEAK_BYTES
                        and len(numbers) < 999
                    ):
                        what = f"cases leave memory behind: {(before - first) >> 20} MiB so far"
                        first = before
                if what is not None and keep is not None:
                    shutil.copytree(folder, keep / f"{subject}-{number}", dirs_exist_ok=True)
                shutil.rmtree(folder)
                yield None if what is None else Finding(subject, number, what)
        finally:
            child.close()


def judged(answer: dict[str, Any], before: int) -> str | None:
    """What is wrong with how a case ended, if anything.

    Args:
        answer: what the child tells.
        before: its memory before the case, in bytes; 0 where it had just been started.
    """
    if before and answer["peak"] - before > CASE_BYTES:
        return f"it took {(answer['peak'] - before) >> 20} MiB"
    for number, ended in enumerate(answer["ended"]):
        if ended["trace"] is not None:
            return f"command {number} raised: {ended['trace'].strip()}"
        if why := wrong_sentence(ended["status"], ended["said"]):
            return f"command {number}: {why}"
    return None


def wrong_sentence(status: int, said: str) -> str | None:
    """What is wrong with an exit status and what was printed, if anything."""
    if status not in (0, 1, 2):
        return f"status {status}"
    at = max(said.find("collage:"), said.find(NO_PLACEMENT))
    if status and at < 0:
        return f"status {status} without a sentence: {said[-300:]!r}"
    sentence = said[at:].strip() if status else ""
    if found := WRONG.search(sentence):
        return f"the sentence holds {found.group()!r}: {sentence[:300]}"
    if found := CONTROL.search(said):
        around = said[max(0, found.start() - 100) : found.start() + 50]
        return f"control characters reach the terminal: {around!r}"
    lines = sentence.splitlines() if sentence.startswith(NO_PLACEMENT) else [sentence]
    if max(map(len, lines), default=0) > LONGEST:
        return f"a sentence of {len(sentence)} characters: {sentence[:200]}"
    return None
