"""Finds attention in a graph, as exporters write it out, and plans it as one call of cuDNN.

Products that share an operand are one product: query, key and value, gate and up.

Exporters move heads in front by reshaping and permuting, scale both operands or the scores, add a
mask, and repeat heads of keys and values that several queries share. cuDNN reads its operands by
strides, so that all of this costs nothing: an operand is a ``View`` of the value that it is made
from. Where query, key and value are products of one value, they can be one product whose parts the
attention reads.

Source of the operation: cuDNN's documentation of scaled dot product attention.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import (
    Bound,
    Either,
    Match,
    Op,
    Pattern,
    anything,
    constant,
    op,
)
from collage_engine.records.graph import (
    Node,
    OperatorNumber,
    OperatorSet,
    Value,
    ValueIndex,
    members,
)
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.runtime import chains
from collage_engine.toolchains.runtime.places import Places
from collage_engine.toolchains.runtime.products import Ints, row_major

TYPES = ("float16", "bfloat16")
"""Element types of cuDNN's attention."""
SIZE = 2
"""Bytes of an element of these types."""
MOST_WIDTH, WIDTH_STEP = 256, 8
"""Elements of a head, at most, and what their number is a multiple of."""
SHAPING = ("reshape", "permute_dims", "expand_dims", "squeeze", "broadcast_to")
RESULTS = ("matmul", "permute_dims", "reshape")
"""Operators that an attention may end with."""


@dataclass(frozen=True)
class View:
    """A value that strides alone lead to from another one."""

    source: ValueIndex
    steps: tuple[ValueIndex, ...] = ()
    """The values on the way from its source, in their order, it itself included."""
    begin: int = 0
    """Where its first element lies, in elements, as its strides are counted."""
    dims: Ints = ()
    strides: Ints = ()
    factors: tuple[tuple[ValueIndex, int], ...] = ()
    """Constants that it is multiplied by, each with its exponent: −1 where it is a divisor."""
    inside: OperatorSet = 0
    """The calls that make it of its source."""

    def transposed(self) -> View:
        """Return it with its last two axes exchanged."""
        *lead, row, column = range(len(self.dims))
        order = (*lead, column, row)
        dims, strides = (tuple(each[axis] for axis in order) for each in (self.dims, self.strides))
        return replace(self, dims=dims, strides=strides)


@dataclass(frozen=True)
class Attention:
    """``softmax(query · keyᵀ · scale + mask) · value``: batch, heads, rows, width are the axes."""

    query: View
    key: View
    value: View
    mask: ValueIndex | None
    scores: View
    """The scores of their product, as far as their scale is written out."""
    result: View
    """How the last product lies in the node that the attention ends with."""
    root: OperatorNumber
    nodes: OperatorSet

    @property
    def operands(self) -> tuple[View, View, View]:
        """Return query, key and value."""
        return self.query, self.key, self.value

    def scale(self, places: Places) -> float:
        """Return what the scores are multiplied by."""
        factors = (*self.query.factors, *self.key.factors, *self.scores.factors)
        return math.prod(
            float(np.asarray(places.constants(index), np.float64).item()) ** exponent
            for index, exponent in (() if places.dry else factors)
        )


def attention_at(graph: DataflowGraph, root: OperatorNumber) -> Attention | None:
    """Return the attention that ends with an operator; None where there is none that cuDNN has."""
    if graph.nodes[root].op not in RESULTS:
        return None
    result = _result(graph, root)
    node = _maker(graph, result.source)
    if node is None or node.op != "matmul":
        return None
    weights, value = node.inputs
    inside = result.inside | 1 << node.index
    weights, inside = _without_nan_guard(graph, *_behind_casts(graph, weights, inside))
    softmax = _maker(graph, weights)
    if softmax is None or softmax.op != "nn.softmax" or not _is_last_axis(softmax):
        return None
    scores, inside = _behind_casts(graph, softmax.inputs[0], inside | 1 << softmax.index)
    mask: ValueIndex | None = None
    added = _maker(graph, scores)
    if added is not None and added.op == "add" and _used_once(graph, scores):
        inside |= 1 << added.index
        scores, mask = added.inputs
        if _scores(graph, scores) is None:
            scores, mask = mask, scores
    scaled = _scores(graph, scores)
    product = None if scaled is None else _maker(graph, scaled.source)
    if scaled is None or product is None:
        return None
    left, right = product.inputs
    inside |= scaled.inside | 1 << product.index
    for through_split in (True, False):
        views = [_view(graph, index, through_split) for index in (left, right, value)]
        nodes = inside | views[0].inside | views[1].inside | views[2].inside
        query, key, values = views
        found = Attention(query, key.transposed(), values, mask, scaled, result, root, nodes)
        if _is_computed(graph, found) and graph.is_closed(nodes, root):
            return found
    return None


def _is_computed(graph: DataflowGraph, found: Attention) -> bool:
    """Tell whether cuDNN computes an attention."""
    query, key, value = (view.dims for view in found.operands)
    if any(len(dims) != 4 for dims in (query, key, value, found.result.dims)):
        return False
    ends = [*(view.source for view in found.operands), found.result.source]
    if found.mask is not None:
        ends.append(found.mask)
        mask = tuple(graph.values[found.mask].type.shape)
        rows = (query[2], key[2])  # a mask may be broadcast over the batch and the heads only
        lead = zip((1,) * (4 - len(mask)) + mask[:-2], query[:2], strict=False)
        if not 2 <= len(mask) <= 4 or mask[-2:] != rows or any(m not in (1, n) for m, n in lead):
            return False
    types = {graph.values[index].type.dtype for index in ends}
    return (
        (value[:3], query[0], query[3]) == (key[:3], key[0], key[3])
        and query[1] % key[1] == 0
        and not found.value.factors
        and not any(d % WIDTH_STEP or d > MOST_WIDTH for d in (query[3], value[3]))
        and all(view.strides[3] == 1 for view in (*found.operands, found.result))
        and len(types) == 1
        and types <= set(TYPES)
    )


def _maker(graph: DataflowGraph, index: ValueIndex) -> Node | None:
    """Return the operator that computes a value and no other one; None where there is none."""
    node = graph.operator_of(index)
    return node if node is not None and len(node.results) == 1 else None


def projections(
    graph: DataflowGraph, found: Attention
) -> list[tuple[View, Node, ValueIndex | None]]:
    """Return the products of one value that query, key and value lie in, each once.

    Returns:
        A view that lies in it, the product, and its bias; empty where they are no such products.
    """
    made: dict[ValueIndex, tuple[View, Node, ValueIndex | None]] = {}
    for view in found.operands:
        projection = _projection(graph, view.source)
        if projection is None:
            return []
        made[view.source] = (view, *projection)
    return list(made.values()) if len({p.inputs[0] for _, p, _ in made.values()}) == 1 else []


def _projection(graph: DataflowGraph, index: ValueIndex) -> tuple[Node, ValueIndex | None] | None:
    """Return the product by constant weights that a value is, and its bias."""
    node, bias = _maker(graph, index), None
    if node is not None and node.op == "add":
        product, bias = sorted(node.inputs, key=lambda i: graph.values[i].constant)
        if not graph.values[bias].constant or not _used_once(graph, product):
            return None
        node = _maker(graph, product)
        if graph.values[bias].type.shape != graph.values[product].type.shape[-1:]:
            return None
    if node is None or node.op != "matmul" or not graph.values[node.inputs[1]].constant:
        return None
    flat = len(graph.values[node.inputs[1]].type.shape) == 2 and len(node.type.shape) >= 2
    return (node, bias) if flat else None


def _used_once(graph: DataflowGraph, index: ValueIndex) -> bool:
    return len(graph.readers[index]) == 1 and index not in graph.leaving_values


def _is_last_axis(node: Node) -> bool:
    return int(node.attributes.get("axis", -1)) in (-1, len(node.type.shape) - 1)


def _behind_casts(
    graph: DataflowGraph, index: ValueIndex, inside: OperatorSet
) -> tuple[ValueIndex, OperatorSet]:
    """Return what a value was before casts; cuDNN computes in float32 between its operands."""
    node = _maker(graph, index)
    while node is not None and node.op == "astype" and _used_once(graph, index):
        inside |= 1 << node.index
        index = node.inputs[0]
        node = _maker(graph, index)
    return index, inside


def _without_nan_guard(
    graph: DataflowGraph, index: ValueIndex, inside: OperatorSet
) -> tuple[ValueIndex, OperatorSet]:
    """Return what is behind ``where(isnan(x), 0, x)``, which PyTorch writes around a softmax."""
    node = _maker(graph, index)
    if node is None or node.op != "where":
        return index, inside
    test, guarded = _maker(graph, node.inputs[0]), node.inputs[2]
    if test is None or test.op != "isnan" or test.inputs != (guarded,):
        return index, inside
    return guarded, inside | 1 << node.index | 1 << test.index


def _scores(graph: DataflowGraph, index: ValueIndex) -> View | None:
    """Return scores as a product and what it is multiplied by; None: they are no product."""
    view = View(index)
    while _used_once(graph, view.source):
        node = _maker(graph, view.source)
        if node is None:
            return None
        if node.op == "matmul":
            return view
        step = _behind(graph, node, view)
        if step is None or node.op in SHAPING:
            return None
        view = step
    return None


def _behind(graph: DataflowGraph, node: Node, view: View) -> View | None:
    """Return a view of what is behind a call that shapes or scales; None: it does neither."""
    inner = replace(view, inside=view.inside | 1 << node.index)
    if node.op in SHAPING or node.op == "astype":
        return replace(inner, source=node.inputs[0])
    for value, number in (
        (node.inputs, node.inputs[::-1]) if node.op in ("multiply", "divide") else ()
    ):
        other = graph.values[number]
        is_factor = node.op == "multiply" or number == node.inputs[1]
        if is_factor and other.constant and other.type.elements == 1:
            exponent = 1 if node.op == "multiply" else -1
            return replace(inner, source=value, factors=(*view.factors, (number, exponent)))
    return None


def _view(graph: DataflowGraph, index: ValueIndex, through_split: bool) -> View:
    """Return how a value lies in the furthest one from which strides alone lead to it."""
    views = [View(index)]
    while _used_once(graph, views[-1].source):
        view, node = views[-1], graph.operator_of(views[-1].source)
        step: View | None = None
        if node is not None and node.op == "split" and through_split:
            inside = view.inside | 1 << node.index
            step = replace(view, source=node.inputs[0], inside=inside)
        elif node is not None and node.op not in ("split", "astype"):
            step = _behind(graph, node, view)
        if step is None:
            break
        views.append(replace(step, steps=(view.source, *view.steps)))
    for view in reversed(views):
        lies = lying(graph, view.steps, np.empty(graph.values[view.source].type.shape, np.int8))
        if lies is not None:
            begin, dims, strides = lies
            return replace(view, begin=begin, dims=dims, strides=strides)
    return views[0]


def lying(
    graph: DataflowGraph, steps: tuple[ValueIndex, ...], array: np.ndarray
) -> tuple[int, Ints, Ints] | None:
    """Return begin, dims and strides of the last of some values made of one; None: it is a copy.

    Heads that are repeated are left as they are, so that there are fewer than the shape says.

    Args:
        graph: The graph.
        steps: The values on the way.
        array: The value, of elements of one byte that are never touched.
    """
    start = array.__array_interface__["data"][0]
    repeated = (0, 0)
    for index in steps:
        node = graph.operator_of(index)
        assert node is not None  # a step is what an operator makes
        given = graph.values[index].type.shape
        shape = [repeated[1] if n == repeated[0] else int(n) for n in given]
        if node.op == "split":
            axis, place = int(node.attributes["axis"]) % array.ndim, node.outputs.index(index)
            begin = sum(int(kind.shape[axis]) for kind in node.types[:place])
            array = array[(slice(None),) * axis + (slice(begin, begin + shape[axis]),)]
        elif node.op == "permute_dims":
            array = array.transpose(node.attributes.get("axes") or None)
        elif node.op == "broadcast_to":
            array = np.broadcast_to(array, shape)
        elif node.op in SHAPING:
            kept = [axis for axis, n in enumerate(array.shape) if n == 1 or array.strides[axis]]
            if len(kept) < array.ndim:
                (axis,) = set(range(array.ndim)) - set(kept)
                heads = array.shape[axis - 1]
                repeated = (heads * array.shape[axis], heads)
                shape = [heads if n == repeated[0] else n for n in shape]
                array = array[(slice(None),) * axis + (0,)]
            if array.size != math.prod(shape):
                return None
            shaped = array.reshape(shape)
            if not np.may_share_memory(shaped, array):
                return None
            array = shaped
    if array.ndim > 4:
        return None
    return array.__array_interface__["data"][0] - start, *_four_axes(array)


def _four_axes(array: np.ndarray) -> tuple[Ints, Ints]:
    """Return shape and strides with four axes; those of one element have a whole value's stride."""
    lead = 4 - array.ndim
    dims = (1,) * lead + array.shape
    strides = (0,) * lead + array.strides
    extent = max((d * s for d, s in zip(dims, strides, strict=True) if d > 1), default=1)
    return dims, tuple(extent if d == 1 else s for d, s in zip(dims, strides, strict=True))


def _result(graph: DataflowGraph, root: ValueIndex) -> View:
    """Return how what is behind some shaping lies in a node: its axes in the node's memory."""
    array = np.empty(graph.values[root].type.shape, np.int8)
    view = View(root)
    while (node := _maker(graph, view.source)) is not None and node.op in RESULTS[1:]:
        if view.source != root and not _used_once(graph, view.source):
            break
        if node.op == "permute_dims":
            order = node.attributes.get("axes") or range(array.ndim)[::-1]
            array = array.transpose(np.argsort([int(axis) for axis in order]))
        else:
            shaped = array.reshape(graph.values[node.inputs[0]].type.shape)
            if not np.may_share_memory(shaped, array):
                break
            array = shaped
        view = replace(view, source=node.inputs[0], inside=view.inside | 1 << node.index)
    dims, strides = _four_axes(array) if array.ndim <= 4 else ((), ())
    return replace(view, dims=dims, strides=strides)


class AttentionPattern(Pattern):
    """Matches attention, with the products before it where one product can be made of them."""

    inside = False  # What is matched counts by its parts.

    @property
    def root_ops(self) -> frozenset[str] | None:
        """Return the operators that an attention may end with."""
        return frozenset(RESULTS)

    def expand(self, graph: DataflowGraph, index: ValueIndex, bound: Bound) -> Iterator[Bound]:
        """Yield the attention that ends with an operator, first with the products before it."""
        node = _maker(graph, index)
        found = None if node is None else attention_at(graph, node.index)
        if found is None:
            return
        before = products_before(graph, found)
        for nodes in (found.nodes | before, found.nodes) if before else (found.nodes,):
            parts = [(Op(), member) for member in members(nodes)]
            yield {**bound, **{id(part): (part, member) for part, member in parts}}


def products_before(graph: DataflowGraph, found: Attention) -> OperatorSet:
    """Return the calls of the products that an attention can be one partition with."""
    nodes = 0
    for view, product, bias in projections(graph, found):
        nodes |= 1 << product.index
        added = None if bias is None else _maker(graph, view.source)
        nodes |= 0 if added is None else 1 << added.index
    return nodes if graph.is_closed(found.nodes | nodes, found.root) else 0


def steps(places: Places, match: Match) -> list[dict[str, Any]]:
    """Return the step of an attention, and before it that of the product which it reads."""
    graph = places.graph
    found = attention_at(graph, match.root)
    if found is None:
        raise UnsupportedError("MatMul: no attention that cuDNN has")
    kind = graph.values[found.query.source].type.dtype
    done: list[dict[str, Any]] = []
    if match.nodes & products_before(graph, found):
        operands = _joined(places, found, done)
    else:
        operands = [
            {**places.read(view.source), "offset": view.begin * SIZE, "strides": view.strides}
            for view in found.operands
        ]
    step: dict[str, Any] = {
        "op": "attention",
        "name": graph.nodes[found.result.source].name or f"attention {match.root}",
        "math": "any",
        "scale": found.scale(places),
        "y": {
            **places.write(match.root),
            "dims": found.result.dims,
            "strides": found.result.strides,
            "dtype": kind,
        },
    }
    for name, operand, view in zip("qkv", operands, found.operands, strict=True):
        step[name] = {**operand, "dims": view.dims, "dtype": kind}
    if found.mask is not None:
        mask = graph.values[found.mask].type
        dims = (1,) * (4 - len(mask.shape)) + tuple(mask.shape)
        place = places.read(found.mask)
        step["mask"] = {**place, "dims": dims, "strides": row_major(dims), "dtype": kind}
    return [*done, step]


def _joined(places: Places, found: Attention, done: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Append the step of one product for query, key and value; return where these lie in it."""
    graph = places.graph
    made = projections(graph, found)
    result, begins = one_product(places, [(product, bias) for _, product, bias in made], done)
    lead = tuple(made[0][1].type.shape[:-1])
    begin_of = {view.source: begin for (view, _, _), begin in zip(made, begins, strict=False)}
    operands = []
    for view in found.operands:
        whole = np.empty((*lead, begins[-1]), np.int8)
        begin = begin_of[view.source]
        part = whole[..., begin : begin + int(graph.values[view.source].type.shape[-1])]
        lies = lying(graph, view.steps, part)
        if lies is None:
            raise UnsupportedError("MatMul: parts of a joined product that would be copied")
        lying_there = replace(view, dims=lies[1], strides=lies[2])
        if view is found.key:
            lying_there = lying_there.transposed()
        place = {**result, "offset": (begin + lies[0]) * SIZE}
        operands.append({**place, "strides": lying_there.strides})
    return operands


def one_product(
    places: Places,
    made: Sequence[tuple[Node, ValueIndex | None]],
    done: list[dict[str, Any]],
) -> tuple[dict[str, Any], list[int]]:
    """Append the step of one product that does the work of several of the same value.

    Args:
        places: Where the values of the function lie.
        made: The products, by constant weights, and their biases.
        done: The steps before it.

    Returns:
        Where its rows lie, and where in a row that of each product begins; at last how long one is.
    """
    first, kind = made[0][0], made[0][0].type.dtype
    begins = [0, *itertools.accumulate(int(product.type.shape[-1]) for product, _ in made)]
    rows, width = math.prod(first.type.shape[:-1]), begins[-1]
    weights = np.concatenate([places.constants(p.inputs[1]) for p, _ in made], axis=1)
    result = {**places.temporary(rows * width * SIZE), "dtype": kind}
    step: dict[str, Any] = {
        "op": "matmul",
        "name": " and ".join(product.name or str(product.index) for product, _ in made),
        "math": "any",
        "x": _matrix(places.read(first.inputs[0]), rows, weights.shape[0], kind),
        "w": _matrix(places.constant(weights), weights.shape[0], width, kind),
        "y": _matrix(result, rows, width, kind),
        "posts": [],
    }
    if any(bias is not None for _, bias in made):
        parts = [
            np.zeros(product.type.shape[-1], weights.dtype)
            if bias is None
            else places.constants(bias)
            for product, bias in made
        ]
        bias = _matrix(places.constant(np.concatenate(parts)), 1, width, kind)
        step["posts"].append({"mode": "add", "other": bias})
    done.append(step)
    return result, begins


def _gated(x: Pattern) -> Pattern:
    """Return the pattern of two products of a value, one of which gates the other."""
    gate, up = (
        op("matmul", x, constant(f"{name} weights"), name=name, where=_is_flat)
        for name in ("gate", "up")
    )
    gates = [
        Either((active,), name=mode)
        for mode, active in (
            ("swish", op("nn.silu", gate) | chains.silu(gate)),
            ("gelu", op("nn.gelu", gate)),
            ("gelu_tanh", op("nn.gelu_tanh", gate)),
        )
    ]
    return op("multiply", Either(tuple(gates)), up, name="gated")


def _is_flat(graph: DataflowGraph, value: Value) -> bool:
    """Tell whether a product is one of half precision by a matrix."""
    node = _maker(graph, value.index)
    weights = () if node is None else graph.values[node.inputs[1]].type.shape
    return len(weights) == 2 <= len(value.type.shape) and value.type.dtype in TYPES


GATED = _gated(anything("x"))
"""``activation(x · gate) · (x · up)``, as in the feed-forward layers of language models."""


def gated_steps(places: Places, match: Match) -> list[dict[str, Any]]:
    """Return the steps of a gated product: one product, and its halves multiplied."""
    done: list[dict[str, Any]] = []
    made = [_maker(places.graph, match.bindings[name]) for name in ("gate", "up")]
    products = [(node, None) for node in made if node is not None]
    result, (_, begin, width) = one_product(places, products, done)
    kind, rows = products[0][0].type.dtype, math.prod(products[0][0].type.shape[:-1])
    half = {"dims": (1, rows, begin), "strides": (rows * width, width, 1), "dtype": kind}
    mode = next(m for m in ("swish", "gelu", "gelu_tanh") if m in match.bindings)
    step = {
        "op": "pointwise",
        "name": f"{mode} of a half of it",
        "math": "any",
        "x": {**result, **half},
        "posts": [
            {"mode": mode},
            {"mode": "multiply", "other": {**result, **half, "offset": begin * SIZE}},
        ],
        "y": _matrix(places.write(match.root), rows, begin, kind),
    }
    return [*done, step]


def _matrix(place: dict[str, Any], rows: int, columns: int, kind: str) -> dict[str, Any]:
    dims = (1, rows, columns)
    return {**place, "dims": dims, "strides": row_major(dims), "dtype": kind}
