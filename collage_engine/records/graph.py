"""Defines the dataflow graph as plain records: operators, and the values between them.

A *node* is one operator call. Nodes are numbered 0…N−1, each after those whose values it reads, in
post-DFS order; candidates, placements, pins, sessions, reports and the desktop use these operator
numbers. A *value* is a tensor: a result of an operator, a parameter of the model, or a constant. An
operator's first result has the operator's number; parameters, constants and further results have
the numbers behind them. So an operator number is a value index, too, but not the other way round.

A set of operators is one Python integer used as a bit set: union is ``|``, intersection ``&``,
difference ``a & ~b``, "has ``i``" ``a >> i & 1``; ``a`` is a subset of ``b`` when ``a & ~b`` is
empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Literal

import msgspec

ValueIndex = int
"""Place of a value in ``GraphRecord.values``."""
OperatorNumber = int
"""Place of an operator in ``GraphRecord.nodes``, and of its first result among values."""
OperatorSet = int
"""A set of operators, held in the bits of one integer."""

OpKind = Literal["elementwise", "broadcast", "injective", "reduction", "anchor", "opaque"]
"""Relay's op pattern kinds; anchor is out-elementwise-fusable."""

KIND_ORDER: dict[OpKind, int] = {
    "elementwise": 0,
    "broadcast": 1,
    "injective": 2,
    "reduction": 3,
    "anchor": 4,
    "opaque": 8,
}
"""The kinds by the numbers of TVM's ``OpPatternKind``, the least restricted first."""

TEXT_BYTES = 256
"""Bytes of a text (the element type ``string``) at the border of a model, at most; chosen: room
for a sentence, and tensors of texts have a fixed size."""
OPEN_SIZE = -1
"""Stands in a shape for a size that depends on the data."""


def item_bytes(dtype: str) -> int:
    """Return the bytes that an element takes in memory, as its type's name says: ``int64``."""
    if dtype == "string":
        return TEXT_BYTES
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits[0]) // 8) if bits else 1


class TensorType(msgspec.Struct, frozen=True, omit_defaults=True):
    """Shape (elements per dimension) and element type (numpy name, bfloat16, or string).

    A size that depends on the data is ``OPEN_SIZE``; only outputs of a model have such sizes.
    """

    shape: tuple[int, ...]
    dtype: str
    any_rank: bool = False
    """Even the number of dimensions depends on the data; ``shape`` is empty then."""

    @property
    def is_open(self) -> bool:
        """Return whether a size is known only when the model has run."""
        return self.any_rank or OPEN_SIZE in self.shape

    @property
    def elements(self) -> int:
        """Return the number of elements; sizes that depend on the data count as 1."""
        n = 1
        for extent in self.shape:
            n *= 1 if extent == OPEN_SIZE else extent
        return n

    @property
    def bytes(self) -> int:
        """Return the size in memory, in bytes."""
        return self.elements * item_bytes(self.dtype)

    @property
    def stored(self) -> TensorType:
        """Return the tensor type that holds it: texts are ``uint8`` with one more dimension."""
        if self.dtype != "string":
            return self
        return TensorType((*self.shape, TEXT_BYTES), "uint8", self.any_rank)

    def __str__(self) -> str:
        if self.any_rank:
            return f"{self.dtype}[…]"
        sizes = ("?" if extent == OPEN_SIZE else str(extent) for extent in self.shape)
        return f"{self.dtype}[{','.join(sizes)}]"


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor that operators read or make."""

    index: ValueIndex
    type: TensorType
    producer: OperatorNumber | None = None
    """The operator that computes it; None: a parameter of the model, or a constant."""
    constant: bool = False
    name: str = ""
    """The ONNX name of a parameter or constant."""
    onnx_value: str | None = None
    """The ONNX value of the cleaned model that it is; None when ONNX lacks it."""
    largest: int | None = None
    """The largest magnitude of a constant's whole numbers of more than 8 bits; None of others."""


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator of the dataflow graph: one call."""

    index: OperatorNumber
    op: str
    """Relax operator without ``relax.``: ``nn.conv2d``, ``add``. ``call_tir:<name>`` for what the
    importer lowered itself."""
    attributes: dict[str, Any] = {}
    """Attributes as JSON values: ints, floats, strings, lists of them. Shape and axis arguments
    that Relax passes as expressions are here too (``shape`` of reshape, ``axes``…)."""
    inputs: tuple[ValueIndex, ...] = ()
    """The values that it reads, in argument order, those of a list one by one; duplicates kept."""
    results: tuple[Value, ...]
    """The values that it makes: at least one."""
    kind: OpKind = "opaque"
    name: str = ""
    """The name of its ONNX node."""
    onnx_nodes: tuple[str, ...] = ()
    """Names in the user's file of the ONNX nodes this call came from, absorbed ones included."""
    onnx_node: int = -1
    """Number of the ONNX node that a call is, or is a part of: calls that share it are never parted
    by candidates. They are numbered in the order of their first calls; -1: a node of its own."""
    onnx_type: str = ""
    """The type of that ONNX node in the user's file: ``HardSwish``; empty where it is ``op``'s."""
    scope: tuple[str, ...] = ()
    """The modules around that ONNX node, outer ones first, where the exporter wrote them down."""

    @property
    def type(self) -> TensorType:
        """Return the type of the first result."""
        return self.results[0].type

    @property
    def types(self) -> tuple[TensorType, ...]:
        """Return the types of the results."""
        return tuple(value.type for value in self.results)

    @property
    def outputs(self) -> tuple[ValueIndex, ...]:
        """Return the indices of the results."""
        return tuple(value.index for value in self.results)


def nodes_of(calls: Iterable[Node]) -> tuple[int, ...]:
    """Return the number of each operator's ONNX node; a negative one: a node of its own.

    Args:
        calls: The operators, by operator number.
    """
    return tuple(
        call.onnx_node if call.onnx_node >= 0 else -1 - operator
        for operator, call in enumerate(calls)
    )


class GraphRecord(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A whole dataflow graph, as it is stored and sent."""

    nodes: tuple[Node, ...]
    """The operators, by operator number."""
    parameters: tuple[Value, ...]
    """The inputs of the model, in file order."""
    constants: tuple[Value, ...] = ()
    outputs: tuple[ValueIndex, ...]
    """The value of each graph output, in output order (a value may appear twice)."""
    output_names: tuple[str, ...] = ()

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """Return all values, by index."""
        made = (value for node in self.nodes for value in node.results)
        return tuple(sorted((*made, *self.parameters, *self.constants), key=lambda v: v.index))

    @property
    def inputs(self) -> tuple[ValueIndex, ...]:
        """Return the indices of the parameters, in file order."""
        return tuple(value.index for value in self.parameters)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Return the names of the parameters, in file order."""
        return tuple(value.name for value in self.parameters)

    @property
    def node_of_operator(self) -> tuple[int, ...]:
        """Return the number of each operator's ONNX node; see ``nodes_of``."""
        return nodes_of(self.nodes)

    def operator_inputs(self) -> list[tuple[OperatorNumber, ...]]:
        """Return the operators whose values each operator reads, each once, by operator number."""
        return [self.producers(node.inputs) for node in self.nodes]

    def producers(self, values: Iterable[ValueIndex]) -> tuple[OperatorNumber, ...]:
        """Return the operators that compute some values, in the order of the values, each once."""
        makers = (self.values[index].producer for index in values)
        return tuple(dict.fromkeys(maker for maker in makers if maker is not None))

    def count_nodes(self, operators: Iterable[int]) -> int:
        """Return how many ONNX nodes hold some operators."""
        nodes = self.node_of_operator
        return len({nodes[operator] for operator in operators})

    def whole_nodes(self, operators: Iterable[int]) -> tuple[int, ...]:
        """Return the operators of all ONNX nodes that hold some operators, ascending."""
        nodes = self.node_of_operator
        held = {nodes[operator] for operator in operators}
        return tuple(operator for operator, node in enumerate(nodes) if node in held)


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model file."""

    path: str
    sha256: str
    nodes: int
    """ONNX nodes after clean-up, of which candidates consist."""
    folded: tuple[str, ...] = ()
    """ONNX nodes that clean-up removed (constant-folded, identities, dropouts)."""
    weights_bytes: int = 0
    onnx_nodes: int = 0
    """Nodes in the user's file."""
    shapes: dict[str, tuple[int, ...]] = {}
    """Sizes given with --shape."""


def operator_set(numbers: Iterable[OperatorNumber]) -> OperatorSet:
    """Return the set of these operators."""
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def members(operators: OperatorSet) -> Iterator[OperatorNumber]:
    """Yield the members of a set in ascending order."""
    rest = operators
    index = -1
    while rest:
        # The shifted number is as short as the span of the members, however large these are.
        step = (rest & -rest).bit_length()
        index += step
        yield index
        rest >>= step


def first(operators: OperatorSet) -> OperatorNumber:
    """Return the smallest member; the set must not be empty."""
    return (operators & -operators).bit_length() - 1
