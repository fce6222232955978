"""Finds the true values that a model's ONNX nodes hand on, for given inputs.

The cleaned ONNX model is cut into segments of bounded size, every value of a segment is an output
of it, and the toolchain that evaluates ONNX runs it as written. A node that it refuses ONNX's own
reference evaluator computes. A segment's values go to ``.npy`` files at once, one per value,
so memory stays bounded by a segment; readers map the files. Values inside an ONNX node, which cross
no partition's border, are not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from collage_engine.lowering.definitions import by_definition, is_affected
from collage_engine.model.dimensions import drop_values
from collage_engine.model.observed_types import Evaluate, evaluate_by_definition
from collage_engine.model.onnx_cleanup import without_functions
from collage_engine.model.onnx_external import (
    LEAST_BYTES,
    MAPPED_FROM_BYTES,
    MAPPED_TYPES,
    Place,
    is_mapped,
    keep_in_file,
    mapped_weights,
    with_own_weights,
)
from collage_engine.model.onnx_file import read_model, read_without_weights, tensor_array
from collage_engine.model.values import numpy_type
from collage_engine.records.graph import OperatorNumber, TensorType, ValueIndex
from collage_engine.support.errors import (
    Cancelled,
    MeasureError,
    ModelError,
    ToolchainError,
    short_reason,
)
from collage_engine.support.time_limits import Flag
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.registry import onnx_evaluator

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

SEGMENT_BYTES = MAPPED_FROM_BYTES // 4
"""Bytes of values and weights that one segment may hold: a few of them in memory take as much as
the largest model that is not mapped."""


class TrueValues:
    """The recorded values of a model in a folder: ``<value index>.npy``."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @classmethod
    def record(
        cls,
        model: ImportedModel,
        inputs: Mapping[str, np.ndarray],
        folder: str | Path,
        cancel: Flag | None = None,
    ) -> TrueValues:
        """Run a model once and record every tensor that the cleaned ONNX model has a name for.

        Args:
            model: The imported model.
            inputs: The inputs by name.
            folder: Where the values are written.
            cancel: Ends the recording when it is set.

        Raises:
            MeasureError: A value cannot be computed here.
            Cancelled: ``cancel`` was set.
        """
        _Recorder(model, folder, cancel).run(inputs)
        return cls(folder)

    def value(self, index: int) -> np.ndarray:
        """Return a value, mapped from its file and read-only.

        Raises:
            MeasureError: It was not recorded.
        """
        path = self.folder / f"{index}.npy"
        try:
            array: np.ndarray = np.load(path, mmap_mode="r")
        except FileNotFoundError:
            raise MeasureError(f"the value {index} was not recorded") from None
        except ValueError:
            array = np.load(path)  # an empty array cannot be mapped
        # NumPy writes bfloat16 as items of two bytes without a type.
        return array.view(numpy_type("bfloat16")) if array.dtype.kind == "V" else array

    def inputs_of(self, function: Function) -> list[np.ndarray]:
        """Return the true inputs of an extracted function, in argument order."""
        return [self.value(index) for index in function.inputs]

    def outputs_of(self, function: Function) -> list[np.ndarray]:
        """Return the true outputs of an extracted function, in order."""
        return [self.value(index) for index in function.outputs]


class _Recorder(TrueValues):
    """Records the values of a model, segment by segment."""

    def __init__(self, model: ImportedModel, folder: str | Path, cancel: Flag | None) -> None:
        super().__init__(folder)
        self.model = model
        self.graph = model.graph
        self.cancel = cancel
        self.known: dict[ValueIndex, None] = {}
        """What is recorded, in order."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Record the inputs and every value."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for index, (name, _) in zip(self.graph.record.inputs, self.model.inputs, strict=True):
            self.save(index, np.asarray(inputs[name]))
        for segment in self.segments():
            self.segment(segment)

    def segments(self) -> list[list[OperatorNumber]]:
        """Return the calls in topological order, in segments of at most ``SEGMENT_BYTES``."""
        segments: list[list[OperatorNumber]] = []
        held = SEGMENT_BYTES + 1
        for index in self.graph.operators:
            node = self.graph.nodes[index]
            read = [self.graph.values[source] for source in node.inputs]
            size = sum(kind.bytes for kind in node.types)
            size += sum(value.type.bytes for value in read if value.constant)
            if held + size > SEGMENT_BYTES or not segments:
                segments.append([])
                held = 0
            segments[-1].append(index)
            held += size
        return segments

    def segment(self, calls: Sequence[OperatorNumber]) -> None:
        """Record the values of some calls.

        Where they cannot be run as a whole they are run one by one, and those that the toolchain
        refuses ONNX's reference evaluator computes.

        Raises:
            MeasureError: Nothing here runs a call.
            Cancelled: The recording was cancelled.
        """
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("stopped while the true values were recorded")
        outputs = [
            value
            for call in calls
            for value in self.graph.used_results(call)
            if self.graph.values[value].onnx_value is not None and value not in self.known
        ]
        if not outputs:
            return  # inside a node whose results come later
        try:
            results = self.by_onnx(run_onnx if len(calls) > 1 else run_by_either, outputs)
        except Exception as error:  # whatever the toolchain's library raises
            if len(calls) == 1:
                node, reason = self.graph.nodes[calls[0]], short_reason(error, line="first")
                raise MeasureError(
                    f"no true value for {node.op} ({node.name}): {reason}"
                ) from error
            for call in calls:
                self.segment([call])
            return
        for index, array in zip(outputs, results, strict=True):
            self.save(index, array)

    def by_onnx(self, run: Evaluate, outputs: Sequence[ValueIndex]) -> list[np.ndarray]:
        """Compute values with ONNX, from those that are recorded.

        Args:
            run: What runs the operators as an ONNX model.
            outputs: The values that are wanted.
        """
        from collage_engine.model.onnx_slice import read_values, slice_model

        inputs = read_values(self.model, list(self.known), outputs)
        part = slice_model(self.model, inputs, outputs)
        results = run(part, {f"v{i}": self.value(i) for i in inputs})
        return [
            shaped(np.asarray(array), self.graph.values[index].type)
            for index, array in zip(outputs, results, strict=True)
        ]

    def save(self, index: ValueIndex, array: np.ndarray) -> None:
        kind = self.graph.values[index].type
        self.known[index] = None
        array = np.ascontiguousarray(array.astype(numpy_type(kind.dtype), copy=False))
        np.save(self.folder / f"{index}.npy", shaped(array, kind))


def shaped(array: np.ndarray, kind: TensorType) -> np.ndarray:
    """Return the array in the shape of its type; as it is where its size depends on the data."""
    return array if kind.is_open else array.reshape(kind.shape)


def run_onnx(model: Any, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run an ONNX model as written, with nothing optimised.

    The toolchain that evaluates ONNX runs it, with nodes written out where its kernels may be wrong
    (``definitions``); ONNX's own reference evaluator does where its package is not installed.

    Args:
        model: The model, or the path of its file.
        feeds: The inputs by name.

    Returns:
        The outputs in the model's order.
    """
    weights: dict[str, np.ndarray] = {}
    if isinstance(model, Path) and not is_affected(read_without_weights(model)):
        source = str(model)
    else:
        light, weights = _without_weights(
            read_model(model)[0] if isinstance(model, Path) else model
        )
        source = by_definition(light).SerializeToString()
    try:
        session = onnx_evaluator().open_onnx(source, weights=weights)
    except ToolchainError:
        return evaluate_onnx(model, feeds)
    return session.run(None, feeds)


@lru_cache(maxsize=1)
def opened_model(
    path: str, shapes: tuple[tuple[str, tuple[int, ...]], ...], sha256: str | None
) -> ImportedModel:
    """Return the model of a file, imported; a process keeps the last one. See ``import_model``."""
    from collage_engine.model.importer import import_model

    return import_model(path, dict(shapes), sha256, run_onnx)


def _without_weights(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a copy of a model without its large weights, and these by name.

    A session takes them as arrays, which is faster than a message that holds them: 0.02 s against
    0.2 s for 108 MB.
    """
    light = onnx.ModelProto()
    light.CopyFrom(model)
    weights = mapped_weights(light.graph.initializer)
    for tensor in light.graph.initializer:
        large = tensor.data_type in MAPPED_TYPES and tensor.ByteSize() > LEAST_BYTES
        if large and not is_mapped(tensor):
            weights[tensor.name] = array = tensor_array(tensor, tensor.name)
            tensor.CopyFrom(
                onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            )
            keep_in_file(tensor, Place(Path(tensor.name), 0, array.nbytes))
    return light, weights


def evaluate_onnx(model: Any, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run an ONNX model with ONNX's own reference evaluator, which is slow but has every operator.

    Args:
        model: The model, or the path of its file.
        feeds: The inputs by name.

    Returns:
        The outputs in the model's order.
    """
    whole = onnx.load(model) if isinstance(model, Path) else with_own_weights(model)
    return evaluate_by_definition(whole, feeds)


def run_by_either(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run an ONNX model; what the evaluating toolchain refuses, ONNX's reference evaluator runs."""
    try:
        return run_onnx(model, feeds)
    except Exception:  # whatever the toolchain's library raises
        return evaluate_onnx(model, feeds)


def original_outputs(
    model: ImportedModel, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return what the *user's* file computes, untouched by clean-up and import.

    The toolchain that evaluates ONNX runs the file. What it cannot take it is given again without
    local functions; what it refuses even so ONNX's reference evaluator runs. The cleaned model
    stands in for a file that is gone.

    Args:
        model: The imported model.
        inputs: The inputs by name.

    Returns:
        The outputs by name.

    Raises:
        ModelError: Neither can run the model.
    """
    path = Path(model.record.path) if model.record.path else None
    source: Any = path if path is not None and path.is_file() else model.onnx
    if path is not None and path is source and model.kept:
        source = read_model(path)[0]  # in old formats runtimes take none of these as inputs
        drop_values(source, model.record.shapes)
    try:
        results = run_onnx(source, inputs)
    except Exception as refusal:
        try:
            whole = read_model(source)[0] if isinstance(source, Path) else source
            plain = without_functions(with_own_weights(whole))
            for node in plain.graph.node:
                node.name = ""  # nodes that replace another share its name, and names may be twice
            results = run_by_either(plain, inputs)
        except Exception as error:
            reasons = "; ".join(short_reason(e, line="first") for e in (refusal, error))
            raise ModelError(
                f"{model.record.path or 'the model'} cannot be run for reference: {reasons}"
            ) from error
    return {
        name: shaped(array.astype(numpy_type(kind.dtype), copy=False), kind)
        for (name, kind), array in zip(model.outputs, results, strict=True)
    }
