"""Runs a model on a few inputs to find types of values that ONNX cannot infer.

Operators outside of the standard have no inference, and some of the standard's know their sizes
only from values (a Loop's, for example). A size that was the same on all inputs is taken as fixed;
a runtime that meets another one later says so, because the border of a partition has a fixed size.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from collage_engine.model.dimensions import open_inputs
from collage_engine.model.onnx_types import OnnxIndex, dtype_name, element_type
from collage_engine.model.values import TEXT_TYPE, for_onnx, from_onnx, numpy_type

Evaluate = Callable[[ModelProto, Mapping[str, np.ndarray]], list[np.ndarray]]
"""Runs a model on inputs by name; gives its outputs in their order."""
Types = dict[str, tuple[int, tuple[int, ...] | None]]
"""Element type (0: unknown) and shape (None: unknown) of values by name."""
SAMPLES = ("zeros", "ones", "twos", "normal")
"""The inputs that a model is run on. Chosen: integers may be indices, of which 0 is valid in every
table and 1 in most, and may say how long something is, so that 2 makes another size than 1; a loop
that ends when values get small ends at once on zeros, and later on others."""
FEWEST = 2
"""Samples that must have run for a size to be taken as fixed: the fewest that can differ."""


def evaluate_by_definition(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run a model with ONNX's own reference evaluator: slow, and the standard's operators only."""
    from onnx.reference import ReferenceEvaluator

    given = for_onnx(feeds, [value.name for value in model.graph.input])
    return from_onnx(list(ReferenceEvaluator(model).run(None, given)))


def observed_types(
    model: ModelProto, types: Types, evaluate: Evaluate, structured: Container[str] = ()
) -> tuple[Types, str]:
    """Find types of the values that have none, as far as runs of the model show them.

    Args:
        model: The cleaned model, whose inputs have known sizes.
        types: What ONNX infers.
        evaluate: Runs a model.
        structured: Values that are no tensors, which have no such type.

    Returns:
        The types found, and why some may be missing (what the last run that failed said), or an
        empty string. A model with a loop that may never end is not run.
    """
    unknown = [
        name
        for node in model.graph.node
        for name in node.output
        if name
        and name not in structured
        and None in (types.get(name, (0, None))[1], types.get(name, (0, None))[0] or None)
    ]
    if not unknown:
        return {}, ""
    endless = next((n for n in model.graph.node if _has_no_limit(n)), None)
    if endless is not None:
        return {}, f"how often the loop '{endless.name}' turns depends on the data"
    probe = with_outputs(model, unknown)
    seen: dict[str, set[tuple[int, tuple[int, ...]]]] = {name: set() for name in unknown}
    failure, runs = "", 0
    for sample in SAMPLES:
        try:
            values = evaluate(probe, sample_inputs(model, sample))
        except Exception as error:  # whatever the evaluator's library raises
            failure = str(error).strip().splitlines()[0] if str(error).strip() else str(type(error))
            continue
        runs += 1
        for name, value in zip(unknown, values, strict=True):
            dtype = "string" if value.dtype == TEXT_TYPE else str(value.dtype)
            seen[name].add((element_type(dtype), value.shape))
    if runs < FEWEST:
        return {}, failure
    return {name: next(iter(kinds)) for name, kinds in seen.items() if len(kinds) == 1}, failure


def _has_no_limit(node: NodeProto) -> bool:
    """Return whether a node is a loop without a greatest number of turns."""
    return node.op_type == "Loop" and not node.domain and not node.input[0]


def may_never_end(node: NodeProto) -> bool:
    """Tells whether a node is a loop that never ends by itself: its body hands the condition on."""
    if not _has_no_limit(node):
        return False
    body = next(a.g for a in node.attribute if a.name == "body")
    source = {o: n.input[0] for n in body.node if n.op_type == "Identity" for o in n.output}
    goes_on = body.output[0].name
    while goes_on in source:
        goes_on = source[goes_on]
    return len(body.input) > 1 and goes_on == body.input[1].name


def with_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """Return what makes some values of a model, with these as its outputs."""
    inputs, index = open_inputs(model), OnnxIndex(model)
    nodes, weights = index.walk(inputs, names)
    graph = helper.make_graph(
        nodes,
        "observed",
        list(inputs.values()),
        [ValueInfoProto(name=name) for name in names],
        [index.initializer[name] for name in weights],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def sample_inputs(model: ModelProto, sample: str) -> dict[str, np.ndarray]:
    """Return values for all inputs of the model; the same in every process."""
    random = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for name, value in open_inputs(model).items():
        tensor = value.type.tensor_type
        shape = tuple(d.dim_value for d in tensor.shape.dim)
        dtype = numpy_type(dtype_name(tensor.elem_type))
        if sample == "normal" and np.issubdtype(dtype, np.floating):
            made[name] = random.standard_normal(shape).astype(dtype)
        else:
            number = {"zeros": 0, "twos": 2}.get(sample, 1)
            made[name] = np.full(shape, number).astype(dtype)
    return made
