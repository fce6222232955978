"""A plan in the making: tensors with strides and the steps of the cuDNN runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.format import NHWC, TO_LOGICAL, TO_STORED
from collage_engine.records.graph import TensorType
from collage_engine.toolchains.runtime.places import Constants

ALIGN = 256
"""Bytes; what cuDNN's fastest engines want of addresses."""
TYPES = ("float32", "float16", "bfloat16")

Ints = tuple[int, ...]


def row_major(dims: Ints) -> Ints:
    """Strides, in elements, of a dense tensor whose last axis is innermost."""
    strides, step = [], 1
    for extent in reversed(dims):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


@dataclass(frozen=True)
class View:
    """Memory seen as a tensor."""

    place: dict[str, Any]
    dims: Ints
    strides: Ints
    dtype: str

    def permuted(self, axes: Ints) -> View:
        return View(
            self.place,
            tuple(self.dims[a] for a in axes),
            tuple(self.strides[a] for a in axes),
            self.dtype,
        )

    def reshaped(self, dims: Ints) -> View:
        """Other sizes over dense memory; ``UnsupportedError`` when it is not dense."""
        wanted = row_major(self.dims)
        if any(s != w for d, s, w in zip(self.dims, self.strides, wanted, strict=True) if d > 1):
            raise UnsupportedError("a reshape of a tensor that is not row-major")
        return View(self.place, dims, row_major(dims), self.dtype)

    def widened(self, rank: int) -> View:
        """With axes of one element in front, ``rank`` of them all."""
        more = rank - len(self.dims)
        front = self.strides[0] * self.dims[0] if self.dims else 1
        return View(self.place, (1,) * more + self.dims, (front,) * more + self.strides, self.dtype)

    def as_json(self) -> dict[str, Any]:
        return {
            **self.place,
            "dims": list(self.dims),
            "strides": list(self.strides),
            "dtype": self.dtype,
        }


def dense(place: dict[str, Any], kind: TensorType, channels_last: bool) -> View:
    """Memory that holds a value: row-major, or an image with its channels innermost."""
    shape = tuple(kind.shape)
    if not channels_last or len(shape) != 4:
        return View(place, shape, row_major(shape), kind.dtype)
    stored = tuple(shape[axis] for axis in TO_STORED[NHWC])
    return View(place, stored, row_major(stored), kind.dtype).permuted(TO_LOGICAL[NHWC])


@dataclass
class CudnnProgram:
    """Values, weights and steps of one function."""

    graph: DataflowGraph
    constants: Constants
    channels_last: bool = False
    """What passes between steps lies N, H, W, C, as what crosses the border does."""
    strict: bool = True
    """float32 is computed in float32, not rounded to tf32 inside."""
    dry: bool = False
    """Only the shape of the plan counts: constants hold nothing."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    views: dict[int, View] = field(default_factory=dict)
    outputs: dict[int, View] = field(default_factory=dict)
    """Where the values that leave the function are to be written."""
    weights: bytearray = field(default_factory=bytearray)
    scratch: int = 0

    def check(self, kind: TensorType, what: str) -> None:
        if kind.dtype not in TYPES:
            raise UnsupportedError(f"{what}: cuDNN computes no {kind.dtype}")
        if 0 in kind.shape:
            raise UnsupportedError(f"{what}: an empty tensor")

    def view(self, index: int) -> View:
        """A value that is given, made or constant."""
        found = self.views.get(index)
        if found is None:
            node = self.graph.nodes[index]
            if node.form != "constant":
                raise UnsupportedError(f"{node.op or 'a value'} is read before it is made")
            self.check(node.type, node.op or "a constant")
            found = self.views[index] = self.constant(self.constants(index))
        return found

    def constant(self, array: np.ndarray, dims: Ints | None = None) -> View:
        """Weights, stored as they lie in ``array`` made contiguous."""
        dense = np.ascontiguousarray(array)
        self.weights.extend(b"\0" * (-len(self.weights) % ALIGN))
        place = {"where": "weight", "at": len(self.weights)}
        self.weights.extend(dense.tobytes())
        shape = tuple(dense.shape) if dims is None else dims
        return View(place, shape, row_major(shape), str(dense.dtype))

    def result(self, index: int) -> View:
        """Where to write the value of a node."""
        found = self.outputs.get(index)
        if found is None:
            kind = self.graph.nodes[index].type
            found = dense({"where": "scratch", "at": self.scratch}, kind, self.channels_last)
            self.scratch += -(-kind.bytes // ALIGN) * ALIGN
        self.views[index] = found
        return found

    def emit(self, op: str, name: str, **fields: Any) -> None:
        """A step. Only what is float32 can lose by being rounded inside; engines that read half
        precision or less use tensor cores as they are."""
        read = fields["x"] if "x" in fields else fields["q"]
        exact = self.strict and read["dtype"] == "float32"
        self.steps.append({"op": op, "name": name, "math": "float32" if exact else "any", **fields})

    def as_json(self) -> dict[str, Any]:
        return {"steps": self.steps, "scratch_bytes": self.scratch}
