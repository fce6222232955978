"""Describes a program of the oneDNN runtime while it is generated: values, constants and steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

import numpy as np

from collage_engine.kernels.rounding import balanced
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import Node, OperatorNumber
from collage_engine.records.operators import onnx_type
from collage_engine.support.errors import UnsupportedError

Constants = Callable[[int], np.ndarray]
"""A function that returns the numbers of a constant."""

MAX_RANK = 12
"""Dimensions of a memory descriptor, at most (oneDNN's DNNL_MAX_NDIMS)."""

WORTH_SHARING_US = 20.0
"""Microseconds of one thread below which a step is not shared: waking the others would take longer
than it saves. Chosen."""

READS = (
    *("src", "other", "weights", "bias", "scale", "shift"),
    *("recurrent", "state", "cell_state"),
)
"""Keys of a step under which it reads one value."""


@dataclass
class PostOp:
    """A function that is applied to a step's result before it is stored."""

    kind: str
    alg: str
    alpha: float = 0.0
    beta: float = 0.0
    value: int = -1
    last: bool = False
    """Whether nobody reads the memory of ``value`` after this step."""


@dataclass
class Step:
    """One operator of the runtime; ``fields`` are its JSON members besides op, out and dims."""

    op: str
    out: int
    dims: tuple[int, ...]
    fields: dict[str, Any]
    posts: list[PostOp] = field(default_factory=list)
    nodes: tuple[int, ...] = ()
    """Calls of the dataflow graph that it computes, wholly or in part."""

    def reads(self) -> list[int]:
        """Return the values that the step reads, those of its post-ops included."""
        inputs = [self.fields[key] for key in READS if key in self.fields]
        inputs += self.fields.get("srcs", [])
        return inputs + [p.value for p in self.posts if p.kind == "binary"]


class OneDnnProgram:
    """The steps of one function; values are numbered.

    Each value is an input, a constant or the result of one step. ``constants`` gives the numbers of
    the graph's constants. It is None in a dry run, which only asks whether an operator can be
    computed; a scalar constant then counts as 2. ``rounds`` tells of which products, by operator
    number, the operands are rounded to bfloat16.
    """

    def __init__(
        self,
        graph: DataflowGraph,
        constants: Constants | None,
        rounds: Callable[[int], bool] = lambda index: False,
    ) -> None:
        self.graph = graph
        self._rounds = rounds
        self.steps: list[Step] = []
        self.dims: list[tuple[int, ...]] = []
        self.types: list[str] = []
        """Element type of each value: float32, until ``bfloat16`` chooses."""
        self.of_node: dict[int, int] = {}
        """By value of the dataflow graph."""
        self.shared: dict[int, int] = {}
        """What several results of an operator are made of, by operator."""
        self.constant_offsets: dict[int, int] = {}
        self.blob = bytearray()
        self.inputs: frozenset[int] = frozenset()
        self.current: tuple[OperatorNumber, ...] = ()
        """Calls being lowered."""
        self._constants = constants

    @property
    def dry(self) -> bool:
        """Tell whether constants have no values here."""
        return self._constants is None

    # Values

    def new_value(self, dims: tuple[int, ...]) -> int:
        """Add a value of these sizes; returns its number.

        Raises:
            UnsupportedError: It has too many dimensions, or no elements.
        """
        if len(dims) > MAX_RANK:
            raise UnsupportedError(f"oneDNN tensors have at most {MAX_RANK} dimensions")
        if 0 in dims:
            raise UnsupportedError("oneDNN runs no tensors without elements")
        self.dims.append(tuple(dims) or (1,))
        self.types.append("float32")
        return len(self.dims) - 1

    def tensor(self, index: int) -> int:
        """Return the number of a value that has been lowered, is an input or a constant.

        Raises:
            UnsupportedError: It has not been lowered, or the runtime does not take its type.
        """
        known = self.of_node.get(index)
        if known is not None:
            return known
        if not self.graph.values[index].constant:
            node = self.graph.operator_of(index)
            title = "an input" if node is None else onnx_type(node.op)
            raise UnsupportedError(f"{title} is read before it is made")
        value = self.new_value(self.shape_of(index))
        if self._constants is not None:
            self.add_constant(value, self._constants(index))
        self.of_node[index] = value
        return value

    def add_constant(self, value: int, array: np.ndarray) -> None:
        """Give a value its weights, which are aligned to 64 bytes."""
        self.blob.extend(bytes(-len(self.blob) % 64))
        self.constant_offsets[value] = len(self.blob)
        self.blob.extend(np.ascontiguousarray(array, dtype=np.float32).tobytes())

    def constant(self, array: np.ndarray) -> int:
        """Add a constant that is in no node; returns its number."""
        value = self.new_value(array.shape)
        self.add_constant(value, array)
        return value

    def weights(self, node: Node) -> int:
        """Return the second operand of a product.

        What only this product reads, and rounds to bfloat16, is given with errors that cancel.
        """
        index = node.inputs[1]
        array = self.array(index)
        alone = len(self.graph.readers[index]) == 1
        if array is None or array.ndim < 2 or not alone or not self._rounds(node.index):
            return self.tensor(index)
        # A row for each result, of all that is summed for it.
        if node.op == "matmul":
            columns = array.swapaxes(-1, -2)
            rounded = balanced(columns.reshape(-1, columns.shape[-1]))
            return self.constant(rounded.reshape(columns.shape).swapaxes(-1, -2))
        return self.constant(balanced(array.reshape(len(array), -1)).reshape(array.shape))

    def scalar(self, index: int) -> float | None:
        """Return the number of a constant with one element; None for any other value."""
        value = self.graph.values[index]
        if not value.constant or value.type.elements != 1:
            return None
        if self._constants is None:
            return 2.0
        return float(np.asarray(self._constants(index)).reshape(()))

    def array(self, index: int) -> np.ndarray | None:
        """Return a constant's numbers; None in a dry run or for another value."""
        if self._constants is None or not self.graph.values[index].constant:
            return None
        return self._constants(index)

    def shape_of(self, index: int) -> tuple[int, ...]:
        """Return the shape of a value of the graph, with one axis at least.

        Raises:
            UnsupportedError: The runtime does not take its type.
        """
        kind = self.graph.values[index].type
        if kind.dtype != "float32":
            raise UnsupportedError(f"the oneDNN runtime takes float32, not {kind.dtype}")
        return kind.shape or (1,)

    # Steps

    def emit(self, op: str, dims: tuple[int, ...], **fields: Any) -> int:
        """Append a step; returns the value that it computes."""
        out = self.new_value(dims)
        self.steps.append(Step(op, out, self.dims[out], fields, nodes=self.current))
        return out

    def reshape(self, value: int, dims: tuple[int, ...]) -> int:
        """Return the value with other sizes."""
        dims = tuple(dims) or (1,)
        return value if self.dims[value] == dims else self.emit("reshape", dims, src=value)

    def permute(self, value: int, axes: tuple[int, ...]) -> int:
        """Return the value with its axes in another order."""
        if tuple(axes) == tuple(range(len(axes))):
            return value
        dims = tuple(self.dims[value][a] for a in axes)
        return self.emit("permute", dims, src=value, axes=list(axes))

    def slice(self, value: int, dims: Sequence[int], begin: Mapping[int, int]) -> int:
        """Return so many elements along each axis, from 0 where an axis has no other begin."""
        first = [begin.get(axis, 0) for axis in range(len(dims))]
        return self.emit("slice", tuple(dims), src=value, begin=first, step=[1] * len(dims))

    def eltwise(self, value: int, alg: str, alpha: float = 0.0, beta: float = 0.0) -> int:
        """Append an elementwise function with its parameters; returns the result."""
        fields = {"alg": alg, "alpha": float(alpha), "beta": float(beta)}
        return self.emit("eltwise", self.dims[value], src=value, **fields)

    def binary(self, alg: str, left: int, right: int) -> int:
        """Append arithmetic of two tensors, which broadcast as in NumPy; returns the result."""
        rank = max(len(self.dims[left]), len(self.dims[right]))
        left, right = (
            self.reshape(v, (1,) * (rank - len(self.dims[v])) + self.dims[v]) for v in (left, right)
        )
        dims = tuple(max(a, b) for a, b in zip(self.dims[left], self.dims[right], strict=True))
        return self.emit("binary", dims, alg=alg, src=left, other=right)

    def as_json(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> dict[str, Any]:
        """Return the program as JSON values for the runtime.

        Args:
            inputs: The values that the function takes, in the order of its arguments.
            outputs: The values that it gives, in the order of its arguments.
        """
        made: set[int] = {s.out for s in self.steps} | set(inputs)
        constants = [
            {"id": value, "dims": list(self.dims[value]), "offset": offset}
            for value, offset in self.constant_offsets.items()
            if value not in made
        ]
        return {
            "input_ids": list(inputs),
            "output_ids": list(outputs),
            "constants": constants,
            "steps": [self._named(s) for s in self.steps],
        }

    def _takes_us(self, step: Step) -> float:
        """Return roughly how long one thread takes: 100 GFLOP/s, or 0.15 ns an element.

        Both rates are chosen; only the order of magnitude counts.
        """
        elements, read = prod(step.dims), step.fields
        weights: tuple[int, ...] = self.dims[read["weights"]] if "weights" in read else ()
        depth = 0.0
        if step.op == "matmul":
            depth = self.dims[read["src"]][-1]
        elif step.op == "conv":
            depth = prod(weights) / step.dims[1]
        elif step.op == "recurrent":  # of inputs: layer, direction, input, gate, output
            _, _, taken, gates, state = weights
            depth = (taken + state) * gates
        elif "src" in read:
            elements = max(elements, prod(self.dims[read["src"]]))
        return 2 * elements * depth / 100e3 or elements * 0.15e-3

    def _named(self, step: Step) -> dict[str, Any]:
        out = {"op": step.op, "out": step.out, "dims": list(step.dims), **step.fields}
        out["nodes"] = list(step.nodes)
        if step.posts:
            out["post"] = [asdict(post) for post in step.posts]
        out["shared"] = int(self._takes_us(step) >= WORTH_SHARING_US)
        if self.types[step.out] != "float32":
            out["dtype"] = self.types[step.out]
        if step.nodes:
            node = self.graph.nodes[step.nodes[-1]]
            out["name"] = node.name or f"{node.op} (node {node.index})"
        return out
