"""Makes a session that holds everything, and an artifact for two shapes, to damage them."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import convert, inspect

from collage_engine.records.placement import Run
from collage_engine.store.session_file import load_session, save_session

SESSION = Path(__file__).resolve().parents[1] / "data" / "mnist.collage"
BATCHES = (1, 3)
"""Sizes of the batch for which the artifact for two shapes is made."""


def _sample(kind: Any) -> Any:
    """Return some value of a type that a record has."""
    if isinstance(kind, inspect.StructType):
        return kind.cls(**{field.name: _sample(field.type) for field in kind.fields})
    if isinstance(kind, inspect.UnionType):
        return _sample(next(t for t in kind.types if not isinstance(t, inspect.NoneType)))
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return [_sample(kind.item_type)]
    if isinstance(kind, inspect.TupleType):
        return tuple(map(_sample, kind.item_types))
    if isinstance(kind, inspect.DictType):
        return {_sample(kind.key_type): _sample(kind.value_type)}
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    plain = {inspect.StrType: "at most 1 text", inspect.BoolType: True, inspect.FloatType: 1.5}
    return plain.get(type(kind), 0)


def _full(run: Run, name: str) -> Run:
    """Return a run with a value in every field that only some runs have."""
    assert run.placement is not None
    placement = _filled(run.placement)
    return _filled(
        msgspec.structs.replace(run, id=name, name=name, placement=placement, rivals=[placement])
    )


def _filled(record: Any) -> Any:
    """Return a record whose empty fields have some value."""
    fields = inspect.type_info(type(record)).fields
    empty = {f.name: _sample(f.type) for f in fields if not getattr(record, f.name)}
    return convert(msgspec.to_builtins(msgspec.structs.replace(record, **empty)), type(record))


@cache
def full_session() -> bytes:
    """Returns a session of this version with two runs that have everything a run can have."""
    document = load_session(SESSION)
    document.runs = [_full(document.runs[0], name) for name in ("r1", "r2")]
    with tempfile.TemporaryDirectory(prefix="collage-full-") as scratch:
        path = Path(scratch) / "s.collage"
        save_session(document, path)
        load_session(path)  # what is refused as it is would hide what mutations find
        return path.read_bytes()


@cache
def _made_once() -> Path:
    """Returns the artifact for two shapes, in a folder that lives as long as this process."""
    from collage_engine.artifact.combine import combine_artifacts
    from collage_engine.model.importer import import_model
    from tests.support.artifact_cases import artifact_of, cover_in_turn
    from tests.zoo.net import Net

    net = Net("two shapes", opset=13, seed=5)
    x = net.input("image", ["batch", 16])
    net.output(net.dense(net.op("Relu", net.dense(x, 16, 32)), 32, 5), shape=["batch", 5])
    scratch = tempfile.TemporaryDirectory(prefix="collage-full-")
    _kept.append(scratch)
    folder = Path(scratch.name)
    (folder / "m.onnx").write_bytes(net.model().SerializeToString(deterministic=True))
    made = []
    for batch in BATCHES:
        model = import_model(folder / "m.onnx", {"image": (batch, 16)})
        made.append(artifact_of(model, cover_in_turn(model, ["tvm"]), folder / str(batch)))
    dims = [{"batch": batch} for batch in BATCHES]
    combine_artifacts(made, dims, folder / "both", padding="batch")
    return folder / "both"


_kept: list[tempfile.TemporaryDirectory[str]] = []
"""Folders that are removed when the process ends."""


def one_shape(folder: Path) -> Path:
    """Copy an artifact for one shape."""
    return Path(shutil.copytree(_made_once().parent / str(BATCHES[0]) / "artifact", folder))


def two_shapes(folder: Path) -> Path:
    """Copy an artifact with an entry for each of two batches."""
    return Path(shutil.copytree(_made_once(), folder))
