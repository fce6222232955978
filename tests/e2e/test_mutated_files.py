"""Mutated models, search problems and store exports end in time and memory, well or in a sentence.

A case follows from its subject and its number alone. A mutated file is usually well-formed, so that
it comes past the parser and reaches the code behind.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import re
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from google.protobuf import json_format
from onnx import ModelProto

from collage_engine.cli.main import main as collage
from collage_engine.cli.screen import complain
from collage_engine.machine.worker import Worker, WorkerError
from collage_engine.records import protocol
from collage_engine.records.versions import STORE_EXPORT
from collage_engine.service.engine import Engine
from collage_engine.support.errors import CollageError
from tests import zoo
from tests.support.search_instances import random_problem
from tests.support.written import written

CASES = {"model": 120, "problem": 250, "store": 150}
CASE_S = 60.0
"""Seconds that a case may take: a hundred times what the slowest good one takes alone."""
MOST_BYTES = 2 << 30
"""Memory that the child and its own children may take. The files have kilobytes, and what the
libraries take is some hundred megabytes."""
LONGEST = 1000
"""Characters of a sentence that a person still reads; what a library says may follow our words."""
IMPORT = "import"
"""In place of a command: the import of a model by an engine, in its job child."""
RAISED = 99
"""Status of a command that raised what no command may raise."""
WRONG = re.compile(
    r"Traceback \(most recent|a defect of Collage|the engine failed|Check failed|InternalError"
    r"|\b(Key|Index|Type|Value|Attribute|Assertion|Runtime|Overflow|ZeroDivision|Memory|Unicode\w*|"
    r"Recursion)Error\b"
)
"""What no sentence for a person holds."""
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")
"""Characters that could change a terminal."""
NASTY: tuple[Any, ...] = (None, True, -1, 0, 10**9, 2**63 - 1, 2**64, -0.5, float("inf"), "", "abc")
NASTY += ("../../outside.bin", "a\x00b", "\x1b]0;PWNED\x07", "\ud7ff\uffff", "x" * 70000)
NASTY += ([], {}, [None], [-1], [1] * 3000)
"""Values that programs are seldom written for."""
MODELS = ("tiny", "several", "residual_block", "outputs", "qdq", "dynamic_batch", "branch")
BRANCH_AND_FUNCTION = """
(float[4] x, bool c) => (float[4] y) {
    i = If(c) <
        then_branch = then () => (float[4] a) { a = Relu(x) },
        else_branch = else () => (float[4] b) {
            k = Constant<value_float: float = 3.0>()
            b = Mul(x, k)
        }
    >
    f = own.Twice(i)
    y = own.Twice(f)
}
<domain: "own", opset_import: ["": 17]> Twice (a) => (b) { r = Relu(a) b = Add(r, a) }
"""


def mutated(random: Random, data: Any) -> Any:
    """A copy of a JSON object or list with one to three changes somewhere inside."""
    data = copy.deepcopy(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(data))
        if not places:
            return data
        holder, key = random.choice(places)
        kind = random.randrange(4)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            other, other_key = random.choice(places)
            holder[key] = copy.deepcopy(other[other_key])
        else:
            alike = [value for value in NASTY if type(value) is type(holder[key])]
            nasty = random.choice(alike if alike and random.random() < 0.7 else NASTY)
            holder[key] = copy.deepcopy(nasty)
    return data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    if isinstance(data, dict | list):
        for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
            yield data, key
            yield from _places(value)


@cache
def _model(name: str) -> ModelProto:
    if name == "branch":
        return written(BRANCH_AND_FUNCTION, opset=17, more='"own": 1')
    return zoo.build(name)


def mutated_model(random: Random) -> bytes:
    """A serialised model of which fields are changed, or bytes."""
    model = _model(random.choice(MODELS))
    while random.random() > 0.1:
        fields = mutated(random, json_format.MessageToDict(model))
        with contextlib.suppress(Exception):  # a value of another type or range: another one
            return json_format.ParseDict(fields, ModelProto()).SerializeToString()
    data = model.SerializeToString()
    start, size = random.randrange(len(data)), random.choice((1, 2, 8, 200))
    return data[:start] + random.randbytes(size) + data[start + size :]


def mutated_export(random: Random) -> bytes:
    """An export of a store with every state that a cost can have."""
    measured = {"state": "measured", "median_us": 5.0, "low_us": 4.0, "high_us": 6.0, "count": 9}
    invalid = {"state": "invalid", "reason": "wrong numbers"}
    rows = [
        {"key": key * 64, "cost": cost, "measured_at": "2026-01-01T00:00:00"}
        for key, cost in (("a", measured), ("b", invalid), ("c", {"state": "unknown"}))
    ]
    head = {"collage_store": STORE_EXPORT, "exported_at": "2026-01-01T00:00:00+00:00"}
    lines = [mutated(random, row) if random.random() < 0.4 else row for row in (head, *rows)]
    return "\n".join(map(json.dumps, lines)).encode()


def made(subject: str, number: int, path: Path) -> list[str]:
    """Write a case to a file; the command that reads it."""
    random = Random(f"{subject} {number}")
    if subject == "model":
        path.write_bytes(mutated_model(random))
        return [IMPORT, str(path)]
    if subject == "store":
        path.write_bytes(mutated_export(random))
        return ["store", "import", str(path)]
    path.write_text(json.dumps(mutated(random, random_problem(random.randrange(1000)))))
    return ["search", str(path), "--json"]


class Reader:
    """Reads the files of one case after the other, in a process of its own."""

    def __init__(self) -> None:
        self.engine = Engine()

    def __call__(self, command: list[str]) -> tuple[int, str]:
        """The exit status of a command, and the end of what it printed, or the trace."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                status = self._import(command[1]) if command[0] == IMPORT else collage(command)
            except SystemExit as error:
                status = int(error.code or 0)
            except BaseException:
                return RAISED, traceback.format_exc()
        return status, said.getvalue()[-20_000:]

    def _import(self, path: str) -> int:
        try:
            opened = self.engine.request(protocol.ModelOpen(path=path))
        except CollageError as error:
            complain(f"collage: {error}")
            return error.exit_status
        self.engine.request(protocol.DocumentClose(document=opened.document))
        return 0


def wrong(status: int, said: str) -> str | None:
    """What is wrong with an exit status and what was printed, if anything."""
    if status not in (0, 1, 2):
        return f"status {status}: {said[-2000:]}"
    start = said.find("collage:")
    if status and start < 0:
        return f"status {status} without a sentence: {said[-300:]!r}"
    sentence = said[start:].strip() if status else ""
    if found := WRONG.search(sentence):
        return f"the sentence holds {found.group()!r}: {sentence[:300]}"
    if CONTROL.search(said):
        return f"control characters reach the terminal: {said[:300]!r}"
    return f"{len(sentence)} characters: {sentence[:200]}" if len(sentence) > LONGEST else None


@pytest.mark.parametrize("subject", CASES)
def test_no_case_does_harm(subject: str, tmp_path: Path) -> None:
    found = []
    environment = {"COLLAGE_CACHE_DIR": str(tmp_path / "cache"), "COLLAGE_TRACE": "1"}
    target = f"{__name__}:Reader"
    with Worker(target, env=environment, memory_limit_bytes=MOST_BYTES) as reader:
        for number in range(CASES[subject]):
            command = made(subject, number, tmp_path / "case.onnx")
            try:
                why = wrong(*reader.call(command, CASE_S))
            except WorkerError as error:  # the reader is started again
                why = str(error)
            if why is not None:
                found.append(f"{subject} {number}: {why}")
    assert not found, "\n".join(each[:1500] for each in found)


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (99, "ZeroDivisionError", "ZeroDivisionError"),
        (1, "nothing of use", "without a sentence"),
        (1, "collage: it cannot be read: IndexError('x')", "IndexError"),
        (0, "conv\x1b]0;title", "control characters"),
        (2, "collage: " + "x" * 2000, "2009 characters"),
    ],
)
def test_a_wrong_sentence_is_noticed(status: int, said: str, why: str) -> None:
    assert why in str(wrong(status, said))
    assert wrong(1, "collage: m.onnx is truncated: copy it again.") is None
