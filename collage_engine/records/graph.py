"""Defines the dataflow graph as plain records, and the two numberings of its nodes.

A *node index* numbers every node of the dataflow graph (parameters, constants, calls, tuples,
projections), in post-DFS order. An *operator number* numbers the operator calls among themselves,
0…N-1, in the same order: candidates, placements, pins, sessions, reports and the desktop use it.
``DataflowGraph.operators``, ``operator_number``, ``to_indices`` and ``to_operators`` lead from
one to the other.

A set of either is one Python integer used as a bit set: union is ``|``, intersection ``&``,
difference ``a & ~b``, "has ``i``" ``a >> i & 1``; ``a`` is a subset of ``b`` when ``a & ~b`` is
empty. At run time all four types are plain integers and cost nothing; a type checker refuses to mix
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, NewType, Self, TypeVar

import msgspec

NodeIndex = NewType("NodeIndex", int)
"""Place of a node in ``DataflowGraph.nodes``."""

OperatorNumber = NewType("OperatorNumber", int)
"""Place of an operator call in ``DataflowGraph.operators``."""

if TYPE_CHECKING:
    Member = TypeVar("Member", bound=int)

    class BitSet(Generic[Member]):
        """What a set of small integers, held in one integer, can do."""

        def __init__(self, bits: int, /) -> None: ...
        def __int__(self) -> int: ...
        def __index__(self) -> int: ...
        def __bool__(self) -> bool: ...
        def __hash__(self) -> int: ...
        def __lt__(self, other: Self) -> bool: ...
        def __or__(self, other: Self) -> Self: ...
        def __and__(self, other: Self) -> Self: ...
        def __invert__(self) -> Self: ...
        def __rshift__(self, member: Member) -> int: ...
        def bit_count(self) -> int:
            """Return how many members there are."""
            ...

        def bit_length(self) -> int:
            """Return one more than the largest member; 0 when empty."""
            ...

    class NodeSet(BitSet[NodeIndex]):
        """A set of nodes of the dataflow graph."""

    class OperatorSet(BitSet[OperatorNumber]):
        """A set of operator calls."""
else:
    NodeSet = OperatorSet = int


NodeForm = Literal["parameter", "constant", "call", "tuple", "projection"]

OpKind = Literal["elementwise", "broadcast", "injective", "reduction", "anchor", "tuple", "opaque"]
"""Relay's op pattern kinds; anchor is out-elementwise-fusable."""

KIND_ORDER: dict[str, int] = {
    "elementwise": 0,
    "broadcast": 1,
    "injective": 2,
    "reduction": 3,
    "anchor": 4,
    "tuple": 7,
    "opaque": 8,
}

TEXT_BYTES = 256
"""Bytes of a text (the element type ``string``) at the border of a model, at most; chosen: room
for a sentence, and tensors of texts have a fixed size."""
OPEN_SIZE = -1
"""Stands in a shape for a size that depends on the data."""

ITEM_BYTES: dict[str, int] = {
    "string": TEXT_BYTES,
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "uint16": 2,
    "float64": 8,
    "int64": 8,
    "uint64": 8,
}
"""Bytes of an element by its type; those of all other types have four."""


def item_bytes(dtype: str) -> int:
    """Return the bytes that an element of a type takes in memory."""
    return ITEM_BYTES.get(dtype, 4)


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


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node of the dataflow graph."""

    index: NodeIndex
    form: NodeForm
    op: str = ""
    """Relax operator without ``relax.``: ``nn.conv2d``, ``add``; a constant's, parameter's
    or projection's is empty. ``call_tir:<name>`` for what the importer lowered itself."""
    attributes: dict[str, Any] = {}
    """Attributes as JSON values: ints, floats, strings, lists of them. Shape and axis arguments
    that Relax passes as expressions are here too (``shape`` of reshape, ``axes``…)."""
    inputs: tuple[NodeIndex, ...] = ()
    """Producing nodes in argument order, duplicates kept, constants and parameters included."""
    types: tuple[TensorType, ...] = ()
    """One type; several when the value is a tuple (``is_tuple``)."""
    is_tuple: bool = False
    kind: OpKind = "opaque"
    name: str = ""
    """A parameter's or constant's ONNX name; for a call its ONNX node's name."""
    field: int = 0
    """Which field a projection takes."""
    onnx_nodes: tuple[str, ...] = ()
    """Names in the user's file of the ONNX nodes this call came from, absorbed ones included."""
    onnx_node: int = -1
    """Number of the ONNX node that a call is, or is a part of: calls that share it are never parted
    by candidates. They are numbered in the order of their first calls; -1: a node of its own."""
    onnx_type: str = ""
    """The type of that ONNX node in the user's file: ``HardSwish``; empty where it is ``op``'s."""
    scope: tuple[str, ...] = ()
    """The modules around that ONNX node, outer ones first, where the exporter wrote them down."""
    onnx_value: str | None = None
    """The ONNX value of the cleaned model that this node's value is; None when ONNX lacks it."""
    scalar: bool = False
    """A constant with one element and no dimensions (upstream inlines these everywhere)."""
    largest: int | None = None
    """The largest magnitude of a constant's whole numbers of more than 8 bits; None of others."""

    @property
    def type(self) -> TensorType:
        """Return the type of a node's only value."""
        return self.types[0]


def nodes_of(calls: Iterable[Node]) -> tuple[int, ...]:
    """Return the number of each operator's ONNX node; a negative one: a node of its own.

    Args:
        calls: The operators, by operator number.
    """
    return tuple(
        call.onnx_node if call.onnx_node >= 0 else -1 - operator
        for operator, call in enumerate(calls)
    )


class GraphRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A whole dataflow graph, as it is stored and sent."""

    nodes: tuple[Node, ...]
    inputs: tuple[NodeIndex, ...]
    """Parameters in file order."""
    outputs: tuple[NodeIndex, ...]
    """Node of each graph output, in output order (a node may appear twice)."""
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()

    @property
    def calls(self) -> tuple[Node, ...]:
        """Return the operator calls, by operator number."""
        return tuple(node for node in self.nodes if node.form == "call")

    @property
    def node_of_operator(self) -> tuple[int, ...]:
        """Return the number of each operator's ONNX node; see ``nodes_of``."""
        return nodes_of(self.calls)

    def sources(self) -> list[set[NodeIndex]]:
        """Return, by index, the calls, parameters and constants whose values each node reads.

        Tuples and projections pass on those that they are made of.
        """
        found: list[set[NodeIndex]] = []
        for node in self.nodes:
            read: set[NodeIndex] = set()
            for index in node.inputs:
                has_value = self.nodes[index].form in ("call", "parameter", "constant")
                read |= {index} if has_value else found[index]
            found.append(read)
        return found

    def operator_inputs(self) -> list[tuple[int, ...]]:
        """Return the operators whose values each operator reads, ascending, by operator number."""
        number = {call.index: place for place, call in enumerate(self.calls)}
        sources = self.sources()
        return [
            tuple(sorted(number[index] for index in sources[call.index] if index in number))
            for call in self.calls
        ]

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


NO_NODES = NodeSet(0)
"""The set that holds no node."""

NO_OPERATORS = OperatorSet(0)
"""The set that holds no operator."""


def node_set(indices: Iterable[NodeIndex]) -> NodeSet:
    """Return the set of these nodes."""
    bits = 0
    for index in indices:
        bits |= 1 << index
    return NodeSet(bits)


def operator_set(numbers: Iterable[OperatorNumber]) -> OperatorSet:
    """Return the set of these operators."""
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return OperatorSet(bits)


def one_node(index: NodeIndex) -> NodeSet:
    """Return the set of one node."""
    return NodeSet(1 << index)


def one_operator(number: OperatorNumber) -> OperatorSet:
    """Return the set of one operator."""
    return OperatorSet(1 << number)


def members(bits: BitSet[Member]) -> Iterator[Member]:
    """Yield the members of a set in ascending order."""
    rest = int(bits)
    index = -1
    while rest:
        # The shifted number is as short as the span of the members, however large these are.
        step = (rest & -rest).bit_length()
        index += step
        yield index  # type: ignore[misc]  # The set's type says which numbering its bits have.
        rest >>= step


def first(bits: BitSet[Member]) -> Member:
    """Return the smallest member; the set must not be empty."""
    rest = int(bits)
    return (rest & -rest).bit_length() - 1  # type: ignore[return-value]  # As in ``members``.
