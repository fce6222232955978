"""Runs cases in a child process and judges what became of them.

A case passes when its commands end in time, in bounded memory, and with status 0 or one clear
sentence. It is made from its subject's name and its number alone, so a finding can be made again:

    python -m tests.fuzz model --first 17 --cases 1 --keep found
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from collage_engine.machine.worker import Worker, WorkerError
from tests.fuzz.reader import Ended
from tests.fuzz.subjects import SUBJECTS

CASE_S = 60.0
"""Seconds that a case may take; chosen: a hundred times what the slowest good one takes alone."""
MOST_BYTES = 2 << 30
"""Memory that the child and its own children may take; chosen. The files have kilobytes, and what
the libraries take is some hundred megabytes."""
LONGEST = 1000
"""Characters of a sentence that a person still reads; chosen. What a library says may follow our
words, on the same line."""
WRONG = re.compile(
    r"Traceback \(most recent|a defect of Collage|the engine failed|Check failed|InternalError"
    r"|\b(Key|Index|Type|Value|Attribute|Assertion|Runtime|Overflow|ZeroDivision|Memory|Unicode\w*|"
    r"Recursion)Error\b"
)
"""What no sentence for a person holds."""
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")
"""Characters that could change a terminal."""


def campaign(subject: str, numbers: range, keep: Path | None = None) -> Iterator[str]:
    """Run cases of a subject; what did not end well, one by one.

    Args:
        subject: a name in ``SUBJECTS``.
        numbers: the cases.
        keep: a folder for the files of cases that did not end well.
    """
    about = SUBJECTS[subject]
    with tempfile.TemporaryDirectory(prefix="collage-fuzz-") as scratch:
        environment = {"COLLAGE_CACHE_DIR": f"{scratch}/cache", "COLLAGE_TRACE": "1"}
        target = "tests.fuzz.reader:Reader"
        with Worker(target, env=environment, memory_limit_bytes=MOST_BYTES) as reader:
            for number in numbers:
                folder = Path(scratch) / str(number)
                folder.mkdir()
                path = about.make(Random(f"{subject} {number}"), folder)
                try:
                    what = judged(reader.call(about.commands(path), CASE_S))
                except WorkerError as error:  # the reader is started again
                    what = str(error)
                if what is not None:
                    yield f"{subject} {number}: {what}"
                    if keep is not None:
                        shutil.copytree(folder, keep / f"{subject}-{number}", dirs_exist_ok=True)
                shutil.rmtree(folder)


def judged(commands: list[Ended]) -> str | None:
    """What is wrong with how a case's commands ended, if anything."""
    for number, ended in enumerate(commands):
        if why := wrong_sentence(ended.status, ended.said):
            return f"command {number}: {why}"
    return None


def wrong_sentence(status: int, said: str) -> str | None:
    """What is wrong with an exit status and what was printed, if anything."""
    if status not in (0, 1, 2):
        return f"status {status}: {said[-2000:]}"
    at = said.find("collage:")
    if status and at < 0:
        return f"status {status} without a sentence: {said[-300:]!r}"
    sentence = said[at:].strip() if status else ""
    if found := WRONG.search(sentence):
        return f"the sentence holds {found.group()!r}: {sentence[:300]}"
    if found := CONTROL.search(said):
        around = said[max(0, found.start() - 100) : found.start() + 50]
        return f"control characters reach the terminal: {around!r}"
    if len(sentence) > LONGEST:
        return f"a sentence of {len(sentence)} characters: {sentence[:200]}"
    return None
