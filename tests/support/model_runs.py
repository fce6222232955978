"""Runs ONNX models and Relax modules in tests, and checks imported models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import onnx

from collage_engine.lowering.extract import relax_module

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel


def run_onnx(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """With ONNX Runtime on the processor, one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = {i.name for i in session.get_inputs()}
    return session.run(None, {k: v for k, v in inputs.items() if k in wanted})


def whole_module(model: ImportedModel) -> Any:
    """The Relax module of a whole model."""
    record = model.graph.record
    return relax_module(model, model.graph.everything, record.inputs, record.outputs)


def run_relax(model: ImportedModel, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Builds a model's operators without schedules and runs them: slow code, right numbers."""
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(relax.build(whole_module(model), "llvm"), tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(a) for a in inputs])
    results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [r.numpy() for r in results]


def relative_error(given: np.ndarray, wanted: np.ndarray) -> float:
    """Returns max|y − r| / max|r|; the absolute error where the truth is all zeros."""
    a, b = given.astype(np.float64), wanted.astype(np.float64)
    if not a.size:
        return 0.0
    apart, size = float(np.abs(a - b).max()), float(np.abs(b).max())
    return apart / size if size else apart


def check_accounting(model: onnx.ModelProto, imported: ImportedModel) -> None:
    """Checks that every node of the file lives on in operators or is folded, never both."""
    record, graph = imported.record, imported.graph
    names = [n.name or n.output[0] for n in model.graph.node]
    lived = {name for node in graph.nodes for name in node.onnx_nodes}
    assert not lived & set(record.folded)
    assert sorted([*lived, *record.folded]) == sorted(names)
    assert record.onnx_nodes == len(names)
    numbers = [graph.nodes[index].onnx_node for index in graph.operators]
    assert list(dict.fromkeys(numbers)) == list(range(record.nodes))
    for node in graph.nodes:
        assert node.onnx_nodes and node.name == node.onnx_nodes[0]
    msgspec.json.encode(graph.record)  # everything is a JSON value


def check_numbers(model: onnx.ModelProto, imported: ImportedModel, tolerance: float) -> None:
    """Checks that the cleaned model computes what the user's does."""
    inputs = imported.random_inputs(1)
    wanted = run_onnx(model, inputs)
    given = run_onnx(imported.onnx, inputs)
    for (name, kind), a, b in zip(imported.outputs, given, wanted, strict=True):
        assert a.shape == b.shape and str(a.dtype) == kind.dtype, name
        assert kind.is_open or a.shape == kind.shape, name
        assert relative_error(a, b) <= tolerance, name
