"""Chains of operators that are one oneDNN function: activations and norms written out.

Exporters and TVM's importer write GELU, SiLU, ELU, layer normalisation and the like as up to ten
operators. A composite is recognised on the dataflow graph by pattern, its scalar constants are
checked when the function is compiled, and it becomes one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import IndexSet, members
from collage_engine.partition.patterns import Match, Pattern, all_matches, anything, constant, op
from collage_engine.toolchains.onednn.linear import normalise_groups, normalise_last
from collage_engine.toolchains.onednn.steps import Plan

Build = Callable[[Plan, Match], int | None]
"""Emits the composite; None when its constants are not the expected ones."""


@dataclass(frozen=True)
class Composite:
    name: str
    pattern: Pattern
    build: Build


@dataclass(frozen=True)
class Found:
    """A composite at a place; ``nodes`` holds its calls only."""

    composite: Composite
    match: Match
    nodes: IndexSet


def _scalar(name: str) -> Pattern:
    return constant(name, scalar=True)


def _is(plan: Plan, match: Match, **wanted: float | tuple[float, ...]) -> bool:
    """Whether the named scalar constants that the match bound have these values."""
    if plan.dry:
        return True
    for name, values in wanted.items():
        if name not in match.bindings:
            continue
        found = plan.scalar(match.bindings[name])
        choices = values if isinstance(values, tuple) else (values,)
        if found is None or not any(np.isclose(found, v, rtol=1e-3) for v in choices):
            return False
    return True


def _value(plan: Plan, match: Match, name: str = "x") -> int:
    return plan.tensor(match.bindings[name])


def _number(plan: Plan, match: Match, name: str, otherwise: float) -> float:
    found = plan.scalar(match.bindings[name]) if name in match.bindings else None
    return otherwise if found is None else found


def _half_times(x: Pattern, gate: Pattern) -> Pattern:
    """``0.5 · x · gate`` in the orders that exporters use."""
    half = _scalar("half")
    return (
        op("multiply", op("multiply", x, gate), half)
        | op("multiply", x, op("multiply", gate, half))
        | op("multiply", op("multiply", x, half), gate)
        | op("divide", op("multiply", x, gate), _scalar("two"))
    )


def _gelu_erf() -> Composite:
    x = anything("x")
    scaled = op("divide", x, _scalar("root")) | op("multiply", x, _scalar("inverse_root"))
    gate = op("add", op("erf", scaled), _scalar("one"))

    def build(plan: Plan, match: Match) -> int | None:
        root = 2.0**0.5
        if _is(plan, match, root=root, inverse_root=1 / root, one=1.0, half=0.5, two=2.0):
            return plan.eltwise(_value(plan, match), "gelu_erf")
        return None

    return Composite("gelu_erf", _half_times(x, gate), build)


def _gelu_tanh() -> Composite:
    x = anything("x")
    square = op("multiply", x, x) | op("power", x, _scalar("square"))
    cube = op("power", x, _scalar("cube")) | op("multiply", square, x)
    inner = op("multiply", op("add", x, op("multiply", cube, _scalar("k"))), _scalar("s"))
    gate = op("add", op("tanh", inner), _scalar("one"))

    def build(plan: Plan, match: Match) -> int | None:
        if _is(plan, match, square=2.0, cube=3.0, k=0.044715, s=(2 / np.pi) ** 0.5, one=1.0,
               half=0.5, two=2.0):  # fmt: skip
            return plan.eltwise(_value(plan, match), "gelu_tanh")
        return None

    return Composite("gelu_tanh", _half_times(x, gate), build)


def _silu() -> Composite:
    x = anything("x")

    def build(plan: Plan, match: Match) -> int | None:
        return plan.eltwise(_value(plan, match), "swish", 1.0)

    return Composite("silu", op("multiply", x, op("sigmoid", x)), build)


def _hardswish() -> Composite:
    x = anything("x")
    low_high = {"min": lambda v: v == 0, "max": lambda v: v == 6}
    clipped = op("clip", op("add", x, _scalar("three")), **low_high)
    six = _scalar("six")
    pattern = op("multiply", x, op("divide", clipped, six)) | op(
        "divide", op("multiply", x, clipped), six
    )

    def build(plan: Plan, match: Match) -> int | None:
        if _is(plan, match, three=3.0, six=6.0):
            return plan.eltwise(_value(plan, match), "hardswish", 1 / 6, 0.5)
        return None

    return Composite("hardswish", pattern, build)


def _hardsigmoid() -> Composite:
    x = anything("x")
    linear = op("add", op("multiply", x, _scalar("alpha")), _scalar("beta"))
    pattern = op("clip", linear, min=lambda v: v == 0, max=lambda v: v == 1)

    def build(plan: Plan, match: Match) -> int | None:
        alpha, beta = (_number(plan, match, n, 0.0) for n in ("alpha", "beta"))
        return plan.eltwise(_value(plan, match), "hardsigmoid", alpha, beta)

    return Composite("hardsigmoid", pattern, build)


def _softplus() -> Composite:
    x = anything("x")
    small = op("exp", op("negative", op("abs", x)))
    pattern = op(
        "add",
        op("maximum", x, _scalar("zero")),
        op("log", op("add", small, _scalar("one"))),
    )

    def build(plan: Plan, match: Match) -> int | None:
        if _is(plan, match, zero=0.0, one=1.0):
            return plan.eltwise(_value(plan, match), "soft_relu", 1.0)
        return None

    return Composite("softplus", pattern, build)


def _mish() -> Composite:
    x = anything("x")
    softplus = op("log", op("add", op("exp", x), _scalar("one")))

    def build(plan: Plan, match: Match) -> int | None:
        if _is(plan, match, one=1.0):
            return plan.eltwise(_value(plan, match), "mish")
        return None

    return Composite("mish", op("multiply", x, op("tanh", softplus)), build)


def _elu() -> Composite:
    x = anything("x")
    negative = op("nn.relu", op("subtract", _scalar("one"), op("exp", x)))
    pattern = op("add", op("multiply", negative, _scalar("minus_alpha")), op("nn.relu", x))

    def build(plan: Plan, match: Match) -> int | None:
        if _is(plan, match, one=1.0):
            alpha = -_number(plan, match, "minus_alpha", -1.0)
            return plan.eltwise(_value(plan, match), "elu", alpha)
        return None

    return Composite("elu", pattern, build)


def _keeps(value: object) -> bool:
    return bool(value)


def _normal(x: Pattern, variance: Pattern, mean: Pattern) -> Pattern:
    """``(x − mean) / √(variance + ε)``."""
    centred = op("subtract", x, mean)
    deviation = op("sqrt", op("add", variance, _scalar("epsilon")))
    root = op("rsqrt", op("add", variance, _scalar("epsilon")))
    return op("divide", centred, deviation) | op("multiply", centred, root)


def _norm_pattern() -> Pattern:
    x = anything("x")
    mean = op("mean", x, name="mean", keepdims=_keeps)
    centred = op("subtract", x, mean)
    squared = op("power", centred, _scalar("square")) | op("multiply", centred, centred)
    squared = squared | op("square", centred)
    spread = op("mean", squared, name="variance", keepdims=_keeps)
    spread = spread | op("variance", x, name="variance", keepdims=_keeps)
    return _normal(x, spread, mean)


def _axes(plan: Plan, match: Match, name: str, rank: int) -> list[int] | None:
    axes = plan.graph.nodes[match.bindings[name]].attributes.get("axis")
    if axes is None:
        return list(range(rank))
    return sorted(int(a) % rank for a in ([axes] if isinstance(axes, int) else axes))


def _build_norm(plan: Plan, match: Match) -> int | None:
    value = _value(plan, match)
    dims = plan.dims[value]
    axes = _axes(plan, match, "mean", len(dims))
    if axes != _axes(plan, match, "variance", len(dims)) or not _is(plan, match, square=2.0):
        return None
    epsilon = _number(plan, match, "epsilon", 1e-5)
    if axes == [len(dims) - 1]:
        scale, shift = (
            plan.reshape(plan.tensor(match.bindings[n]), (dims[-1],))
            if n in match.bindings
            else None
            for n in ("scale", "shift")
        )
        return normalise_last(plan, value, axes, epsilon, scale, shift)
    if "scale" in match.bindings or axes != list(range(2, len(dims))):
        return None
    return normalise_groups(plan, value, dims[1], epsilon)


def _layer_norm() -> Composite:
    def vector(name: str) -> Pattern:
        return constant(
            name, where=lambda graph, node: None if len(node.type.shape) == 1 else "is no vector"
        )

    norm = _norm_pattern()
    scaled = op("multiply", norm, vector("scale"))
    return Composite("layer_norm", op("add", scaled, vector("shift")), _build_norm)


def _bare_norm() -> Composite:
    return Composite("norm", _norm_pattern(), _build_norm)


COMPOSITES: tuple[Composite, ...] = (
    _layer_norm(), _bare_norm(), _gelu_erf(), _gelu_tanh(), _hardswish(), _silu(), _mish(),
    _elu(), _softplus(), _hardsigmoid(),
)  # fmt: skip
"""Larger ones first: the first that fits claims its operators."""

_cache: WeakKeyDictionary[DataflowGraph, tuple[Found, ...]] = WeakKeyDictionary()


def find(graph: DataflowGraph) -> tuple[Found, ...]:
    """Every place where a composite's operators are read by nobody else; they may overlap."""
    known = _cache.get(graph)
    if known is None:
        known = _cache.setdefault(graph, tuple(_search(graph)))
    return known


def _search(graph: DataflowGraph) -> Iterator[Found]:
    for composite in COMPOSITES:
        roots = composite.pattern.root_ops or frozenset()
        for root in graph.operators:
            if graph.nodes[root].op not in roots:
                continue
            for match in all_matches(graph, composite.pattern, root):
                calls = 0
                for index in members(match.nodes):
                    if graph.nodes[index].form == "call":
                        calls |= 1 << index
                if _closed(graph, calls, root):
                    yield Found(composite, match, calls)
                    break


def _closed(graph: DataflowGraph, calls: IndexSet, root: int) -> bool:
    """Whether only the root's value is read outside."""
    return all(
        index == root
        or not (
            graph.output_set >> index & 1 or any(not calls >> u & 1 for u in graph.users[index])
        )
        for index in members(calls)
    )


def within(graph: DataflowGraph, inside: IndexSet) -> dict[int, Found]:
    """Composites that lie in a set, by root; of overlapping ones the first in the table wins."""
    chosen: dict[int, Found] = {}
    taken = 0
    for found in find(graph):
        if found.nodes & ~inside or found.nodes & taken:
            continue
        chosen[found.match.root] = found
        taken |= found.nodes
    return chosen
