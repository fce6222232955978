"""Our FuseOps on the dataflow graph gives the groups of Relax's pass on the same model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from collage_engine.model.importer import import_onnx
from collage_engine.partition.fuse_ops import fuse_ops
from collage_engine.records.graph import members
from tests import zoo
from tests.support.model_runs import whole_module

NAMES = {"permute_dims": "transpose", "concat": "concatenate", "astype": "cast"}
MODELS = (*zoo.SMALL, "light_squeezenet", "light_shufflenet", "mobilenet_v2")


def plain(name: str) -> str:
    """A PrimFunc's name or an operator's, comparable."""
    short = name.split(".")[-1].removeprefix("tir_").rstrip("0123456789")
    return NAMES.get(short, short)


def relax_groups(module: Any) -> Counter[tuple[str, ...]]:
    from tvm import relax

    passes = (
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(2),
    )
    for apply in passes:
        module = apply(module)

    def calls(function: Any) -> list[Any]:
        bound = [b.value for block in function.body.blocks for b in block.bindings]
        return [value for value in bound if isinstance(value, relax.Call)]

    groups: Counter[tuple[str, ...]] = Counter()
    for call in calls(module["main"]):
        if call.op.__class__.__name__ == "GlobalVar":
            inner = calls(module[call.op])
            groups[tuple(sorted(plain(c.args[0].name_hint) for c in inner))] += 1
        else:
            groups[(plain(call.args[0].name_hint),)] += 1
    return groups


@pytest.mark.parametrize("name", MODELS)
def test_same_groups(name: str) -> None:
    model = import_onnx(zoo.build(name), shapes=zoo.SHAPES.get(name))
    nodes = model.graph.nodes
    ours: Counter[tuple[str, ...]] = Counter()
    for group in fuse_ops(model.graph):
        label = tuple(sorted(plain(nodes[i].op) for i in members(group)))
        ours[label] += 1
    assert ours == relax_groups(whole_module(model))
