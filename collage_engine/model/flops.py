"""How much arithmetic and memory traffic an operator needs at the very least.

Two counts of floating-point operations: ``flops``, as everybody counts them (a multiply and an
add each one), and ``least_flops``, which no algorithm in use undercuts. They differ for
convolutions: Winograd and FFT kernels need fewer multiplications than the direct one, but
always at least one per output element and input channel (Winograd F(m, r) takes
((m + r − 1) / m)² > 1 of them; Lavin and Gray 2016). Bytes are what must cross the border of
a sub-graph: what stays inside may live in registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import IndexSet, members
from collage_engine.records.graph import Node, TensorType

_NOTHING = {
    "broadcast_to", "concat", "expand_dims", "flatten", "flip", "full", "full_like",
    "gather_elements", "gather_nd", "layout_transform", "nn.batch_flatten", "nn.dropout", "nn.pad",
    "nn.pixel_shuffle", "ones", "ones_like", "permute_dims", "repeat", "reshape", "split",
    "squeeze", "stack", "strided_slice", "take", "tile", "tril", "triu", "zeros", "zeros_like",
    "arange", "eye", "eye_like", "scatter_elements", "scatter_nd", "where", "meshgrid", "one_hot",
    "image.resize2d", "image.resize3d", "astype",
}  # fmt: skip
_PARTIAL_READERS = {
    "take", "strided_slice", "split", "gather_elements", "gather_nd", "dynamic_strided_slice",
    "image.resize2d", "image.resize3d", "image.grid_sample", "zeros_like", "ones_like",
    "full_like", "index_tensor", "vision.roi_align", "vision.roi_pool",
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """Least work of a sub-graph."""

    flops: int
    least_flops: int
    input_bytes: int
    """Values it must read from outside."""
    output_bytes: int
    """Values it must write for the outside."""
    weight_bytes: int
    """Constants it must read, in the model's own types."""

    @property
    def bytes(self) -> int:
        return self.input_bytes + self.output_bytes + self.weight_bytes


def _input(graph: DataflowGraph, node: Node, place: int) -> TensorType:
    return graph.nodes[node.inputs[place]].types[0]


def operator_flops(graph: DataflowGraph, index: int) -> tuple[int, int]:
    """(flops, least_flops) of one call; zero for what only moves data."""
    node = graph.nodes[index]
    if node.form != "call" or node.op in _NOTHING:
        return 0, 0
    elements = sum(t.elements for t in node.types)
    if node.op.startswith("nn.conv"):
        return _convolution(graph, node)
    if node.op == "matmul":
        left = _input(graph, node, 0).shape
        inner = left[-1] if left else 1
        count = 2 * elements * inner - elements
        return count, count
    if node.op in ("nn.attention", "nn.attention_bias"):
        batch, length, heads, width = _input(graph, node, 0).shape
        keys = _input(graph, node, 1).shape[1]
        depth = _input(graph, node, 2).shape[-1]
        count = batch * heads * length * keys * (2 * width - 1 + 2 * depth - 1)
        return count, count
    if node.kind == "reduction":
        # n values become one with n − 1 operations.
        count = max(_input(graph, node, 0).elements - elements, 0)
        return count, count
    if node.op.startswith(("nn.max_pool", "nn.avg_pool", "nn.adaptive_avg_pool")):
        window = prod(node.attributes.get("pool_size") or [1])
        # Neighbouring windows share work: a running maximum or sum takes one operation each.
        return elements * max(window - 1, 1), _shared(elements, window)
    return elements, elements


def _shared(elements: int, window: int) -> int:
    return elements if window > 1 else 0


def _convolution(graph: DataflowGraph, node: Node) -> tuple[int, int]:
    weights, data, out = _input(graph, node, 1), _input(graph, node, 0), node.type
    groups = node.attributes.get("groups", 1)
    taken = data.shape[_channel_axis(node, "data_layout", data)] // groups
    given = out.shape[_channel_axis(node, "out_layout", out)] // groups
    kernel = _kernel_sizes(node, weights)
    if "transpose" in node.op:
        # Every input element meets every kernel element of its group once.
        direct, least = 2 * data.elements * given * prod(kernel), 2 * data.elements * given
    else:
        direct = out.elements * (2 * taken * prod(kernel) - 1)
        least = out.elements * (2 * taken - 1)
    if max(node.attributes.get("padding") or [0]) >= min(kernel):
        least = 0  # Elements at the border may meet nothing but padding.
    return direct, least


def _kernel_sizes(node: Node, weights: TensorType) -> list[int]:
    layout = node.attributes.get("kernel_layout") or ""
    found = [e for c, e in zip(layout, weights.shape, strict=False) if c in "DHW"]
    return found or [1]


def _channel_axis(node: Node, name: str, kind: TensorType) -> int:
    layout = node.attributes.get(name) or node.attributes.get("data_layout") or ""
    place = layout.find("C")
    return place if 0 <= place < len(kind.shape) else 1


def sub_graph_work(graph: DataflowGraph, nodes: IndexSet) -> Work:
    """Least work of a closed set of nodes."""
    inputs, outputs = graph.boundary(nodes)
    flops = least = weights = 0
    for index in members(nodes):
        node = graph.nodes[index]
        if node.form == "constant":
            weights += node.type.bytes if _read_whole(graph, index, nodes) else 0
        direct, bound = operator_flops(graph, index)
        flops += direct
        least += bound
    return Work(
        flops=flops,
        least_flops=least,
        input_bytes=sum(graph.nodes[i].type.bytes for i in inputs if _read_whole(graph, i, nodes)),
        output_bytes=sum(graph.nodes[i].type.bytes for i in outputs),
        weight_bytes=weights,
    )


def _read_whole(graph: DataflowGraph, index: int, nodes: IndexSet) -> bool:
    """Whether some operator inside surely reads every element of a value.

    Views inside (reshape and the like) may feed a partial reader, so only a direct reader that
    computes with the value counts.
    """
    for user in graph.users[index]:
        if not nodes >> user & 1:
            continue
        reader = graph.nodes[user]
        if reader.form == "tuple":
            if any(nodes >> i & 1 for i in graph.users[user]):
                return True
        elif reader.form == "call" and reader.op not in _PARTIAL_READERS:
            if reader.op in ("reshape", "permute_dims", "squeeze", "expand_dims", "flatten"):
                if _read_whole(graph, user, nodes) or not _read_inside(graph, user, nodes):
                    return True
            else:
                return True
    return False


def _read_inside(graph: DataflowGraph, index: int, nodes: IndexSet) -> bool:
    return any(nodes >> user & 1 for user in graph.users[index])
