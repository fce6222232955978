"""Models of the zoo cut at random, mixed over toolchains, against what the file computes."""

from __future__ import annotations

import itertools
import random

import pytest

from collage_engine.lowering.build import build_cover
from collage_engine.lowering.reference import TrueValues, original_outputs
from collage_engine.lowering.tensors import from_numpy, to_numpy
from collage_engine.machine.loader.run_artifact import error_of
from collage_engine.model.importer import import_onnx
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.registry import get
from tests import zoo
from tests.support.covers import candidate_on

EXTERNAL = ("onednn", "onnxruntime")
WITH_TVM = ("tiny", "several", "outputs", "split_concat", "float_resnet_block")


def random_cover(model, tools, pieces, seed):
    """Runs of ONNX nodes in topological order, each on a toolchain that says it can take them."""
    graph = model.graph
    node_of = graph.record.node_of_operator
    count = len(node_of)
    # Where all earlier operators belong to earlier nodes than all later ones.
    borders = [at for at in range(1, count) if max(node_of[:at]) < min(node_of[at:])]
    draw = random.Random(seed)
    instances = [ToolchainInstance(toolchain=name, threads=1) for name in tools]

    def takes(instance, operators):
        toolchain = get(instance.toolchain)
        return all(toolchain.supports(graph, n, instance) is None for n in operators)

    cuts = [0, *sorted(draw.sample(borders, min(pieces - 1, len(borders)))), count]
    cover = []
    for begin, end in itertools.pairwise(cuts):
        operators = tuple(range(begin, end))
        able = [instance for instance in instances if takes(instance, operators)]
        assert able, [graph.nodes[n].op for n in operators]
        cover.append(candidate_on(draw.choice(able), operators))
    return cover


BERT = "bert"
"""Cut in two, its GELUs are taken by ONNX Runtime only."""
MIXES = [
    *((name, EXTERNAL, 6, 0) for name in zoo.SMALL if name != BERT),
    (BERT, ("onnxruntime",), 9, 0),
    *((name, ("tvm", *EXTERNAL), 4, 3) for name in WITH_TVM),
]


@pytest.mark.parametrize(("name", "tools", "pieces", "seed"), MIXES)
def test_mixed_covers_compute_the_models_numbers(name, tools, pieces, seed):
    import tvm
    from tvm import relax

    model = import_onnx(zoo.build(name), shapes=zoo.SHAPES.get(name))
    inputs = model.random_inputs(seed)
    truth = original_outputs(model, inputs)
    built = build_cover(model, random_cover(model, tools, pieces, seed))
    vm = relax.VirtualMachine(built.executable, tvm.cpu())
    result = vm["main"](*[from_numpy(inputs[n], kind) for n, kind in model.inputs])
    tensors = [result] if len(model.outputs) == 1 else list(result)
    found = [
        error_of(to_numpy(tensor, kind), truth[n])[1]
        for tensor, (n, kind) in zip(tensors, model.outputs, strict=True)
    ]
    # A step of 8 bits here or there, where a sum in another order flips a rounding.
    loose = {"float16": 1e-2, "qdq_resnet_block": 2e-2}
    assert max(found) <= loose.get(name, 2e-5)


@pytest.mark.parametrize("name", zoo.SMALL)
def test_every_value_of_the_graph_is_recorded_and_right(name, tmp_path):
    model = import_onnx(zoo.build(name), shapes=zoo.SHAPES.get(name))
    inputs = model.random_inputs(0)
    truth = original_outputs(model, inputs)
    values = TrueValues.record(model, inputs, tmp_path)
    graph = model.graph
    named = [i for i in graph.operators if graph.values[i].onnx_value is not None]
    assert named and all(values.value(index) is not None for index in named)
    found = [
        error_of(values.value(index), truth[output])[1]
        for (output, _), index in zip(model.outputs, graph.record.outputs, strict=True)
        if not graph.values[index].constant
    ]
    assert max(found, default=0.0) <= (1e-3 if name == "float16" else 1e-6)
