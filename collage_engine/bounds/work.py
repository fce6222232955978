"""The least work of a sub-graph: what no implementation can leave out.

Nothing else is counted, so that a bound that rests on it never exceeds a true cost:

* multiply-adds of convolutions and matrix products, those on padding not counted; unless all
  toolchains are known to convolve directly, divided by what fast algorithms can save
  (Winograd's F(6×6,3×3) saves a factor 5.06; transforms of larger kernels leave at least one
  multiplication an output and channel pair; no library multiplies matrices by Strassen's
  method within these tolerances);
* bytes of inputs and weights that an operator reads whole, and of outputs that it has to write;
  reads and writes may overlap, so the larger of the two counts, and what caches keep from one
  run to the next need not be read again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from collage_engine.bounds.conv_windows import convolution_windows, pool_windows
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members, node_set
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.precision import FLOAT32

WINOGRAD = 5.0625
"""Factor of multiplications that Winograd's F(6×6,3×3) saves: 8·8 of them make 6·6 outputs of nine
taps each, 324/64."""

_READS_WHOLE = """
    add subtract multiply divide power maximum minimum greater less equal abs exp log sqrt rsqrt
    erf tanh sigmoid negative floor ceil round clip nn.relu nn.leakyrelu nn.gelu nn.gelu_tanh
    nn.silu nn.softmax nn.log_softmax nn.prelu nn.bias_add nn.batch_norm nn.layer_norm
    nn.group_norm nn.instance_norm nn.rms_norm sum mean max min prod variance astype matmul
    quantize dequantize concat
"""
READS_WHOLE = frozenset(_READS_WHOLE.split())
"""Operators that need every element of every input, and compute every element they give."""

KEEPS_ALL = frozenset({"reshape", "permute_dims", "expand_dims", "squeeze", "flatten"})
"""Operators that give the elements of their first input, all of them: perhaps a view."""

POOLS = frozenset({"nn.max_pool2d", "nn.avg_pool2d"})
"""Operators that read what their windows cover (``conv_windows``)."""


@dataclass
class Work:
    """What a sub-graph cannot leave out."""

    operations: dict[str, float] = field(default_factory=dict)
    """Floating-point (or integer) operations by element type."""
    read_bytes: int = 0
    """Bytes that have to be read."""
    write_bytes: int = 0
    """Bytes that have to be written."""


class WorkCounter:
    """Counts the work of sub-graphs of one graph; what depends on a single node is computed once.

    Args:
        graph: The dataflow graph.
        direct: Whether toolchains convolve directly or by a matrix product, never by Winograd's
            method or a transform.
        precision: The precision that float32 products may be made in, of weights kept in it.
    """

    def __init__(
        self, graph: DataflowGraph, direct: bool = False, precision: str = FLOAT32
    ) -> None:
        self.graph = graph
        self.direct = direct
        self.precision = precision
        self._operations: dict[int, float] = {}
        self._reads: dict[int, tuple[NodeIndex, ...]] = {}
        self._eight_bits = _eight_bits(graph)

    def of(self, nodes: NodeSet) -> Work:
        """Return the least work of a set of nodes with their constants, tuples and projections."""
        graph = self.graph
        nodes = graph.close(nodes)
        _, outputs = graph.boundary(nodes)
        work = Work()
        read: set[int] = set()
        eight_bits = bool(nodes & self._eight_bits)
        # A value of which a part is never looked at may be computed in part: walk back from the
        # outputs and count only what is needed whole.
        whole = set(outputs)
        for index in reversed(list(members(nodes))):
            node = graph.nodes[index]
            if node.form != "call" or index not in whole:
                continue
            operations = self.operations(index)
            if operations:
                dtype = graph.nodes[node.inputs[0]].type.dtype
                dtype = "int8" if eight_bits else self.precision if dtype == FLOAT32 else dtype
                work.operations[dtype] = work.operations.get(dtype, 0.0) + operations
            if node.op in KEEPS_ALL:
                whole.add(node.inputs[0])  # whoever makes it must make all; a view reads nothing
            for source in self.reads_whole(index):
                whole.add(source)
                if graph.nodes[source].form == "constant" or not nodes >> source & 1:
                    read.add(source)
        narrow = 1 if eight_bits else 4 if self.precision == FLOAT32 else 2
        work.read_bytes = sum(
            min(narrow * graph.nodes[i].type.elements, graph.nodes[i].type.bytes)
            if narrow < 4 and graph.nodes[i].form == "constant"
            else graph.nodes[i].type.bytes
            for i in read
        )
        # Only what is computed: a view of an input is written by nobody.
        work.write_bytes = sum(
            graph.nodes[i].type.bytes
            for i in outputs
            if graph.nodes[i].op in READS_WHOLE or self.operations(i) > 0
        )
        return work

    def operations(self, index: int) -> float:
        """Return the multiplications and additions that a call takes at least."""
        known = self._operations.get(index)
        if known is None:
            node = self.graph.nodes[index]
            known = 0.0
            if node.form == "call":
                known = least_operations(self.graph, node, self.direct)
            self._operations[index] = known
        return known

    def reads_whole(self, index: int) -> tuple[NodeIndex, ...]:
        """Return the inputs that a call reads completely when its whole output is needed."""
        known = self._reads.get(index)
        if known is None:
            node = self.graph.nodes[index]
            known = ()
            if node.op in READS_WHOLE:
                known = tuple(
                    i for i in node.inputs if self.graph.nodes[i].form not in ("tuple", "other")
                )
            elif node.op in POOLS:
                windows = pool_windows(self.graph, node)
                known = (
                    node.inputs[:1] if windows and all(w.covers_input() for w in windows) else ()
                )
            elif self.operations(index) > 0:
                windows = convolution_windows(self.graph, node)
                touched = bool(windows) and all(w.covers_input() for w in windows)
                known = node.inputs[:2] if touched else node.inputs[1:2]
            self._reads[index] = known
        return known


def _eight_bits(graph: DataflowGraph) -> NodeSet:
    """Return the nodes that read or give 8-bit integers.

    A toolchain may compute a set with one of them in whole numbers, and keep weights in them.
    """
    narrow = [any(kind.dtype in ("int8", "uint8") for kind in node.types) for node in graph.nodes]
    return node_set(
        node.index
        for node in graph.nodes
        if narrow[node.index] or any(narrow[source] for source in node.inputs)
    )


def least_operations(graph: DataflowGraph, node: Node, direct: bool = False) -> float:
    """Return the operations of a convolution or matrix product that no algorithm saves.

    Args:
        graph: The dataflow graph.
        node: The call; others have 0.
        direct: Whether convolutions are computed directly or by a matrix product.
    """
    if node.op == "matmul" and len(node.inputs) == 2 and not node.is_tuple:
        shape = graph.nodes[node.inputs[0]].type.shape
        return 2.0 * node.type.elements * shape[-1] if shape else 0.0
    if node.op in ("nn.conv1d", "nn.conv2d", "nn.conv3d"):
        return _convolution(graph, node, direct)
    return 0.0


def _convolution(graph: DataflowGraph, node: Node, direct: bool) -> float:
    """Return the operations of a convolution that no algorithm saves; 0: they are not known."""
    windows = convolution_windows(graph, node)
    if not windows:
        return 0.0
    saving = 1.0
    for each in () if direct else windows:
        if each.taps > 1 and each.stride == 1 and each.dilation == 1:
            saving *= 2.25 if each.taps <= 3 else each.taps
    if len(windows) == 2 and saving == 2.25**2:
        saving = WINOGRAD
    data, weight = (graph.nodes[i].type for i in node.inputs[:2])
    kernel = str(node.attributes["kernel_layout"])
    batch = data.shape[str(node.attributes["data_layout"]).index("N")]
    channels = weight.shape[kernel.index("O")] * weight.shape[kernel.index("I")]
    pairs = math.prod(each.pairs_in_range() for each in windows)
    return 2.0 * batch * channels * pairs / saving
