"""What is attacked: how a case is made from a seed, and what a child does with it.

``Subject.make`` writes the mutated file; ``Subject.commands`` says what is done with it, as
arguments of ``collage`` or, for models, as the import alone, which ``collage candidates`` begins
with: in the job child, as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from onnx import ModelProto

from collage_engine.records.versions import STORE_EXPORT
from tests import zoo
from tests.fuzz.mutations import mutate_model, mutate_text
from tests.fuzz.reader import IMPORT
from tests.support.search_instances import random_problem
from tests.support.written import written

MODELS = ("tiny", "several", "residual_block", "outputs", "qdq", "dynamic_batch")
"""Small models of the zoo that are mutated, beside one with a branch and a function."""
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


@dataclass(frozen=True)
class Subject:
    """A kind of input.

    Attributes:
        make: writes a case of a seed into a folder and returns its path.
        commands: what is done with it, one after the other.
        cases: how many cases the job of every change takes.
    """

    make: Callable[[Random, Path], Path]
    commands: Callable[[Path], list[list[str]]]
    cases: int


@cache
def _model(name: str) -> ModelProto:
    if name == "branch":
        return written(BRANCH_AND_FUNCTION, opset=17, more='"own": 1')
    return zoo.build(name)


def _make_model(random: Random, folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(mutate_model(random, _model(random.choice((*MODELS, "branch")))))
    return path


def _make_problem(random: Random, folder: Path) -> Path:
    path = folder / "p.json"
    path.write_bytes(mutate_text(random, random_problem(random.randrange(1000))))
    return path


def _make_store(random: Random, folder: Path) -> Path:
    """An export of a store with every state that a cost can have."""
    measured = {"state": "measured", "median_us": 5.0, "low_us": 4.0, "high_us": 6.0, "count": 9}
    invalid = {"state": "invalid", "reason": "wrong numbers"}
    rows = [
        {"key": key * 64, "cost": cost, "measured_at": "2026-01-01T00:00:00"}
        for key, cost in (("a", measured), ("b", invalid), ("c", {"state": "unknown"}))
    ]
    head = {"collage_store": STORE_EXPORT, "exported_at": "2026-01-01T00:00:00+00:00"}
    lines = [
        mutate_text(random, row) if random.random() < 0.4 else json.dumps(row).encode()
        for row in (head, *rows)
    ]
    path = folder / "export.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


SUBJECTS: dict[str, Subject] = {
    "model": Subject(_make_model, lambda path: [[IMPORT, str(path)]], 120),
    "problem": Subject(_make_problem, lambda path: [["search", str(path), "--json"]], 250),
    "store": Subject(_make_store, lambda path: [["store", "import", str(path)]], 150),
}
"""Name → the subject."""
