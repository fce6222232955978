"""Makes small ONNX models and runs them on one external toolchain, for its tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, shape_inference

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.toolchains.base import Function, Toolchain
from tests.zoo import net as zoo_net

Tensor = tuple[int, ...] | np.ndarray
T = TypeVar("T", bound=Toolchain)


class Net(zoo_net.Net):
    """A model under construction: ``net.add("Conv", x, weights)`` returns a value's name."""

    def __init__(self, opset: int = 17, seed: int = 0) -> None:
        super().__init__("net", opset=opset, seed=seed)

    def input(self, *shape: int, element: int = TensorProto.FLOAT) -> str:  # type: ignore[override]
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def randn(self, *shape: int, scale: float = 1.0) -> str:
        return self.const((self.random.standard_normal(shape) * scale).astype(np.float32))

    def scalar(self, value: float) -> str:
        return self.const(np.float32(value))

    def add(self, op: str, *inputs: str | None, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"{op.lower()}{len(self.nodes)}_{k}" for k in range(outputs)]
        return self.op(op, *(i or "" for i in inputs), outputs=names, **attributes)

    def model(self, *outputs: str) -> ModelProto:  # type: ignore[override]
        self.outputs = [ValueInfoProto(name=name) for name in outputs]
        return shape_inference.infer_shapes(super().model(check=False), strict_mode=True)


def one_operator(
    op: str, *inputs: Tensor | None, opset: int = 17, outputs: int = 1, **attributes: Any
) -> ModelProto:
    """Returns a model of one operator.

    Args:
        op: The ONNX operator.
        inputs: A tuple is an input of that shape, an array is a constant; None leaves an optional
            input out.
        opset: The version of the operator set.
        outputs: How many outputs the operator has.
        attributes: The operator's attributes.
    """
    net = Net(opset)
    names = [
        None if i is None else net.input(*i) if isinstance(i, tuple) else net.const(i)
        for i in inputs
    ]
    made = net.add(op, *names, outputs=outputs, **attributes)
    return net.model(*([made] if outputs == 1 else made))


def whole(
    model: ImportedModel, instance: ToolchainInstance, symbol: str = "whole", spin: bool = False
) -> Function:
    """Returns all calls of a model as one function."""
    graph = model.graph
    inputs, outputs = graph.boundary(graph.everything)
    return Function(symbol, model, graph, graph.everything, inputs, outputs, instance, spin)


def name_of(graph: DataflowGraph, index: int) -> str:
    """Returns the name of a parameter, and a name for any other value."""
    return graph.values[index].name or f"v{index}"


def tensors(function: Function, feeds: dict[str, np.ndarray]) -> tuple[list[Any], list[np.ndarray]]:
    """Returns arguments for the function, and its outputs' arrays, which are among them.

    Arguments are the input tensors, then outputs full of NaN.
    """
    import tvm_ffi

    values = function.graph.values
    given = [np.ascontiguousarray(feeds[name_of(function.graph, i)]) for i in function.inputs]
    results = []
    for index in function.outputs:
        kind = values[index].type
        empty = np.empty(kind.shape, kind.dtype)
        empty.fill(np.nan if kind.dtype.startswith("float") else 99)
        results.append(empty)
    return [tvm_ffi.from_dlpack(a) for a in (*given, *results)], results


def run(module: Any, function: Function, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Calls the compiled function once and returns its outputs."""
    arguments, results = tensors(function, feeds)
    module[function.symbol](*arguments)
    return results


def reference(
    model: ModelProto, function: Function, feeds: dict[str, np.ndarray]
) -> list[np.ndarray]:
    """Returns what ONNX Runtime, unoptimised, computes, in the order of the function's outputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found = session.run(None, feeds)
    outputs = function.graph.record.outputs
    return [found[outputs.index(i)] for i in function.outputs]


def error(result: np.ndarray, truth: np.ndarray) -> float:
    """Returns ``max|y−r| / max|r|``; infinite where only the result is not finite."""
    if result.dtype.kind != "f":
        return float(not np.array_equal(result, truth))
    finite = np.isfinite(truth)
    if not np.all(np.isfinite(result[finite])):
        return float("inf")
    difference = np.abs(result[finite].astype(np.float64) - truth[finite])
    return float(difference.max(initial=0.0) / max(np.abs(truth[finite]).max(initial=0.0), 1e-30))


def load_again(module: Any) -> Any:
    """Serialises a module and loads it, as an artifact does."""
    import tvm_ffi

    load = tvm_ffi.get_global_func(f"ffi.Module.load_from_bytes.{module.kind}")
    return load(saved(module))


def saved(module: Any) -> bytes:
    """Returns the module in its serialised form."""
    return bytes(module["collage.save"]())


def default_instance(toolchain: Toolchain, threads: int = 1) -> ToolchainInstance:
    """Returns the first float32 instance for the processor."""
    return toolchain.instances(Target(threads=threads), "float32")[0]


def imported(model: ModelProto) -> ImportedModel:
    return import_onnx(model)


def available(toolchain: T) -> T:
    """Returns the toolchain; where it cannot be used, the test fails with the reason."""
    state = toolchain.probe()
    assert state.available, state.reason
    return toolchain


def check_whole(
    toolchain: Toolchain,
    model: ModelProto,
    instance: ToolchainInstance,
    tolerance: float,
    truths: Sequence[np.ndarray] | None = None,
    *,
    settled: bool = True,
) -> Any:
    """Compile the whole model and hold it against the truth; saved and loaded again, it gives the
    same bits. The compiled module.

    ``truths``: ONNX Runtime's, unoptimised, where none are given. ``settled``: what is saved is
    the same at once; otherwise once it has been loaded (weights may be kept rounded then).
    """
    net = imported(model)
    function = whole(net, instance)
    for index in net.graph.operators:
        reason = toolchain.supports(net.graph, index, instance)
        assert reason is None, f"{net.graph.nodes[index].op}: {reason}"
    module = toolchain.compile(function)
    feeds = net.random_inputs(0)
    results = run(module, function, feeds)
    for result, truth in zip(results, truths or reference(model, function, feeds), strict=True):
        assert error(result, truth) < tolerance
    again = load_again(module)
    first, second = (module, again) if settled else (again, load_again(again))
    assert saved(first) == saved(second)
    for result, repeated in zip(results, run(again, function, feeds), strict=True):
        np.testing.assert_array_equal(result, repeated)
    return module
