"""What is attacked: how a case is made from a seed, and what a child does with it.

``Subject.make`` writes the mutated file; ``Subject.commands`` says what is done with it, as
arguments of ``collage`` or, for models, as the import alone, which ``collage candidates`` begins
with: in the job child, as everywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from collage_engine.records.versions import STORE_EXPORT
from tests import zoo
from tests.fuzz.mutations import mutate_bytes, mutate_database, mutate_json, mutate_model
from tests.support.full_documents import (
    BATCHES,
    SESSION,
    full_session,
    loader_in_cpp,
    one_shape,
    two_shapes,
)
from tests.support.search_instances import random_problem

MODELS = ("tiny", "several", "residual_block", "outputs", "qdq", "dynamic_batch")
"""Small models of the zoo that are mutated, beside one with a branch and a function."""

IMPORT = "import"
"""In place of a command: the import of a model by an engine, in its job child."""
OUTSIDE = "outside"
"""In place of a command: another program, the loader in C++, with its arguments."""
SHAPES = "shapes"
"""In place of a command: what ``place --shapes`` does before anything is measured."""


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
    return _branch_and_function() if name == "branch" else zoo.build(name)


def _branch_and_function() -> ModelProto:
    """An If with constants in its branches, and a model-local function that is called twice."""

    def branch(name: str, scale: float) -> Any:
        value = helper.make_tensor("k", TensorProto.FLOAT, [4], [scale] * 4)
        constant = helper.make_node("Constant", [], ["k"], value=value)
        scaled = helper.make_node("Mul", ["x", "k"], [name])
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])
        return helper.make_graph([constant, scaled], name, [], [out])

    body = [helper.make_node("Relu", ["a"], ["r"]), helper.make_node("Add", ["r", "a"], ["b"])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Twice", ["a"], ["b"], body, opsets[:1])
    truth = helper.make_tensor("t", TensorProto.BOOL, [], [True])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=truth),
        helper.make_node(
            "If", ["c"], ["i"], then_branch=branch("i1", 2.0), else_branch=branch("i2", 3.0)
        ),
        helper.make_node("Twice", ["i"], ["f"], domain="own"),
        helper.make_node("Twice", ["f"], ["y"], domain="own"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)


def _make_model(random: Random, folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(mutate_model(random, _model(random.choice((*MODELS, "branch")))))
    return path


def _make_session(random: Random, folder: Path) -> Path:
    path = folder / "s.collage"
    path.write_bytes(SESSION.read_bytes() if random.random() < 0.3 else full_session())
    mutate_database(random, path)
    return path


def _session_commands(path: Path) -> list[list[str]]:
    report = str(path.with_name("r"))
    return [
        ["explain", str(path), "0"],
        ["compare", str(path), "first", "last"],
        *(["report", str(path), "-o", f"{report}.{kind}"] for kind in REPORTS),
    ]


REPORTS = ("html", "md", "csv", "shapes.csv", "json", "svg", "graphml")
"""Kinds of reports, by the endings of their files."""


def _make_problem(random: Random, folder: Path) -> Path:
    path = folder / "p.json"
    data = random_problem(random.randrange(1000))
    text = json.dumps(mutate_json(random, data))
    path.write_bytes(
        mutate_bytes(random, text.encode()) if random.random() < 0.1 else text.encode()
    )
    return path


@cache
def _export() -> list[Any]:
    """The lines of an exported store: every state that a cost can have."""
    cost = {"state": "measured", "median_us": 5.0, "low_us": 4.0, "high_us": 6.0, "count": 9}
    rows: list[Any] = [{"collage_store": STORE_EXPORT, "exported_at": "2026-01-01T00:00:00+00:00"}]
    for number, state in enumerate(("measured", "invalid", "unknown")):
        about = cost if state == "measured" else {"state": state, "reason": "wrong numbers"}
        rows.append({"key": f"{number:064x}", "cost": about, "measured_at": "2026-01-01T00:00:00"})
    return rows


def _make_store(random: Random, folder: Path) -> Path:
    path = folder / "export.jsonl"
    text = "".join(json.dumps(row) + "\n" for row in mutate_json(random, _export()))
    path.write_bytes(
        mutate_bytes(random, text.encode()) if random.random() < 0.1 else text.encode()
    )
    return path


def _make_artifact(random: Random, folder: Path) -> Path:
    path = one_shape(folder / "artifact")
    manifest = json.loads((path / "manifest.json").read_bytes())
    text = json.dumps(mutate_json(random, manifest)).encode()
    (path / "manifest.json").unlink()
    (path / "manifest.json").write_bytes(
        mutate_bytes(random, text) if random.random() < 0.1 else text
    )
    return path


def _make_entries(random: Random, folder: Path) -> Path:
    path = two_shapes(folder / "artifact")
    place = path / random.choice(("", "1"))
    manifest = json.loads((place / "manifest.json").read_bytes())
    keys = ("entries", "padding", "environment", "threads", "inputs", "outputs", "tolerance")
    about = [key for key in keys if key in manifest]
    about += ["libraries"] if random.random() < 0.2 and "libraries" in manifest else []
    part = {key: manifest[key] for key in about}
    if random.random() < 0.1:
        part |= {"streams": 2}
    changed = mutate_json(random, part)
    if random.random() < 0.15:
        changed = {**manifest, **mutate_json(random, manifest)}
    text = json.dumps({**{k: v for k, v in manifest.items() if k not in about}, **changed})
    (place / "manifest.json").write_text(text)
    if random.random() < 0.15:
        sample = path / "1/sample_input.npz"
        sample.write_bytes(mutate_bytes(random, sample.read_bytes()))
        _hash_again(sample.parent, sample)
    _hash_again(path, path / "1/manifest.json")
    return path


def _hash_again(folder: Path, changed: Path) -> None:
    """Write a file's new hash to the manifest, where that still has one."""
    manifest = json.loads((folder / "manifest.json").read_text())
    about = manifest.get("files")
    about = about.get(str(changed.relative_to(folder))) if isinstance(about, dict) else None
    if isinstance(about, dict):
        about["sha256"] = hashlib.sha256(changed.read_bytes()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(manifest))


def _entries_commands(path: Path) -> list[list[str]]:
    inputs = path.with_name("inputs.npz")
    np.savez(inputs, image=np.ones((2, 16), np.float32))
    loader = str(loader_in_cpp())
    return [
        ["run", str(path)],
        [OUTSIDE, loader, str(path)],
        [OUTSIDE, loader, str(path), "--inputs", str(inputs)],
    ]


def _make_shapes(random: Random, folder: Path) -> Path:
    path = folder / "shapes.json"
    (folder / "m.onnx").write_bytes(_model("dynamic_batch").SerializeToString())
    name = _model("dynamic_batch").graph.input[0].name
    sizes = [
        [d.dim_value or 2 for d in i.type.tensor_type.shape.dim]
        for i in _model("dynamic_batch").graph.input[:1]
    ]
    data = [*({"batch": batch} for batch in BATCHES), {name: sizes[0]}]
    text = json.dumps(mutate_json(random, data)).encode()
    path.write_bytes(mutate_bytes(random, text) if random.random() < 0.1 else text)
    return path


@cache
def _answer() -> tuple[bytes, Any]:
    """A search problem and the program's answer to it."""
    from collage_engine.search.command import main_search

    problem = json.dumps(random_problem(7)).encode()
    return problem, json.loads(json.dumps(main_search(problem, time_limit_s=10.0, ranked=2)))


def _make_answer(random: Random, folder: Path) -> Path:
    path = folder / "answer.json"
    problem, answer = _answer()
    (folder / "p.json").write_bytes(problem)
    text = json.dumps(mutate_json(random, answer)).encode()
    path.write_bytes(mutate_bytes(random, text) if random.random() < 0.1 else text)
    return path


SUBJECTS: dict[str, Subject] = {
    "model": Subject(_make_model, lambda path: [[IMPORT, str(path)]], 120),
    "session": Subject(_make_session, _session_commands, 60),
    "problem": Subject(_make_problem, lambda path: [["search", str(path), "--json"]], 250),
    "store": Subject(_make_store, lambda path: [["store", "import", str(path)]], 150),
    "answer": Subject(
        _make_answer,
        lambda path: [["search", str(path.with_name("p.json")), "--check", str(path)]],
        100,
    ),
    "shapes": Subject(_make_shapes, lambda path: [[SHAPES, str(path)]], 100),
    "entries": Subject(_make_entries, _entries_commands, 25),
    "manifest": Subject(_make_artifact, lambda path: [["run", str(path)]], 30),
}
"""Name → the subject. Messages of the protocol have a campaign of their own (``protocol.py``)."""
