"""Describes a program of the cuDNN runtime while it is generated: strided tensors, and steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import TensorType
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.runtime.per_axis import row_major
from collage_engine.toolchains.runtime.places import Constants

ALIGN = 256
"""Bytes to which addresses are aligned, so that cuDNN's fastest engines can be used: what
cudaMalloc gives (CUDA C++ Programming Guide, device memory accesses)."""
TYPES = ("float32", "float16", "bfloat16")
"""Element types in which the steps of a program compute."""

Ints = tuple[int, ...]


@dataclass(frozen=True)
class View:
    """A tensor in memory, whose strides count elements."""

    place: dict[str, Any]
    dims: Ints
    strides: Ints
    dtype: str

    def permuted(self, axes: Ints) -> View:
        """Returns the same memory with its axes in another order."""
        return View(
            self.place,
            tuple(self.dims[a] for a in axes),
            tuple(self.strides[a] for a in axes),
            self.dtype,
        )

    def widened(self, rank: int) -> View:
        """Returns the tensor with axes of one element in front, so that it has ``rank`` axes."""
        more = rank - len(self.dims)
        front = self.strides[0] * self.dims[0] if self.dims else 1
        return View(self.place, (1,) * more + self.dims, (front,) * more + self.strides, self.dtype)

    def as_json(self) -> dict[str, Any]:
        """Returns the tensor as JSON values for the runtime."""
        return {
            **self.place,
            "dims": list(self.dims),
            "strides": list(self.strides),
            "dtype": self.dtype,
        }


def dense(place: dict[str, Any], kind: TensorType) -> View:
    """Returns memory that holds a value in row-major order."""
    return View(place, tuple(kind.shape), row_major(kind.shape), kind.dtype)


@dataclass
class CudnnProgram:
    """The values, weights and steps of one function while they are collected."""

    graph: DataflowGraph
    constants: Constants
    strict: bool = True
    """Whether float32 is computed in float32, and not rounded to tf32 inside."""
    dry: bool = False
    """Whether only the shape of the program counts; constants then have no values."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    views: dict[int, View] = field(default_factory=dict)
    outputs: dict[int, View] = field(default_factory=dict)
    """Tensors to which the values that leave the function are written, by node."""
    weights: bytearray = field(default_factory=bytearray)
    scratch: int = 0
    """Bytes that intermediate results take."""

    def check(self, kind: TensorType, what: str) -> None:
        """Checks that cuDNN can compute with a type.

        Raises:
            UnsupportedError: It cannot, or the tensor is empty; ``what`` is named in the message.
        """
        if kind.dtype not in TYPES:
            raise UnsupportedError(f"{what}: cuDNN computes no {kind.dtype}")
        if 0 in kind.shape:
            raise UnsupportedError(f"{what}: an empty tensor")

    def view(self, index: int) -> View:
        """Returns the tensor of a node's value; a constant is added to the weights first.

        Raises:
            UnsupportedError: The value has not been computed, or cuDNN cannot compute with its
                type.
        """
        found = self.views.get(index)
        if found is None:
            node = self.graph.nodes[index]
            if node.form != "constant":
                raise UnsupportedError(f"{onnx_type(node.op)} is read before it is made")
            self.check(node.type, node.op or "a constant")
            found = self.views[index] = self.constant(self.constants(index))
        return found

    def constant(self, array: np.ndarray) -> View:
        """Adds an array to the weights, and returns it as a tensor."""
        self.weights.extend(b"\0" * (-len(self.weights) % ALIGN))
        place = {"where": "weight", "at": len(self.weights)}
        if not self.dry:
            self.weights.extend(np.ascontiguousarray(array).tobytes())
        return View(place, array.shape, row_major(array.shape), str(array.dtype))

    def result(self, index: int) -> View:
        """Returns the tensor to which the value of a node is to be written."""
        found = self.outputs.get(index)
        if found is None:
            kind = self.graph.nodes[index].type
            found = dense({"where": "scratch", "at": self.scratch}, kind)
            self.scratch += -(-kind.bytes // ALIGN) * ALIGN
        self.views[index] = found
        return found

    def emit(self, op: str, name: str, **fields: Any) -> None:
        """Appends a step.

        Only what is float32 can lose by being rounded inside; engines that read half precision or
        less use tensor cores in any case.
        """
        exact = self.strict and fields["x"]["dtype"] == "float32"
        self.steps.append({"op": op, "name": name, "math": "float32" if exact else "any", **fields})

    def as_json(self) -> dict[str, Any]:
        """Returns the program as JSON values for the runtime."""
        return {"steps": self.steps, "scratch_bytes": self.scratch}
