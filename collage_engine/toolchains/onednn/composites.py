"""Recognises chains of operators that are one oneDNN function: activations and norms written out.

Exporters and TVM's importer write GELU, SiLU, ELU, layer normalisation and the like as up to ten
operators. A composite is recognised on the dataflow graph by pattern, its scalar constants are
checked when the function is compiled, and it becomes one step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collage_engine.partition.matching import Match
from collage_engine.partition.patterns import Pattern, anything
from collage_engine.toolchains.onednn.linear import normalise_groups, normalise_last
from collage_engine.toolchains.onednn.steps import OneDnnProgram
from collage_engine.toolchains.runtime import chains
from collage_engine.toolchains.runtime.claims import Claims

Build = Callable[[OneDnnProgram, Match], int | None]
"""A function that emits a composite; it returns None where constants have other values than
expected."""


@dataclass(frozen=True)
class Composite:
    """A pattern of operators that is one function of oneDNN, with what emits it."""

    name: str
    pattern: Pattern
    build: Build


def _is(plan: OneDnnProgram, match: Match, **wanted: float | tuple[float, ...]) -> bool:
    """Returns whether the named scalar constants that the match bound have these values."""
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


def _value(plan: OneDnnProgram, match: Match) -> int:
    return plan.tensor(match.bindings["x"])


def _number(plan: OneDnnProgram, match: Match, name: str, otherwise: float) -> float:
    found = plan.scalar(match.bindings[name]) if name in match.bindings else None
    return otherwise if found is None else found


def _gelu_erf(plan: OneDnnProgram, match: Match) -> int | None:
    root = 2.0**0.5
    if _is(plan, match, root=root, inverse_root=1 / root, one=1.0, half=0.5, two=2.0):
        return plan.eltwise(_value(plan, match), "gelu_erf")
    return None


def _gelu_tanh(plan: OneDnnProgram, match: Match) -> int | None:
    wanted = {"square": 2.0, "cube": 3.0, "k": 0.044715, "s": (2 / np.pi) ** 0.5}
    if _is(plan, match, **wanted, one=1.0, half=0.5, two=2.0):
        return plan.eltwise(_value(plan, match), "gelu_tanh")
    return None


def _silu(plan: OneDnnProgram, match: Match) -> int | None:
    return plan.eltwise(_value(plan, match), "swish", 1.0)


def _hardswish(plan: OneDnnProgram, match: Match) -> int | None:
    if _is(plan, match, three=3.0, six=6.0):
        return plan.eltwise(_value(plan, match), "hardswish", 1 / 6, 0.5)
    return None


def _hardsigmoid(plan: OneDnnProgram, match: Match) -> int | None:
    alpha, beta = (_number(plan, match, n, 0.0) for n in ("alpha", "beta"))
    return plan.eltwise(_value(plan, match), "hardsigmoid", alpha, beta)


def _softplus(plan: OneDnnProgram, match: Match) -> int | None:
    if _is(plan, match, zero=0.0, one=1.0):
        return plan.eltwise(_value(plan, match), "soft_relu", 1.0)
    return None


def _mish(plan: OneDnnProgram, match: Match) -> int | None:
    if _is(plan, match, one=1.0):
        return plan.eltwise(_value(plan, match), "mish")
    return None


def _elu(plan: OneDnnProgram, match: Match) -> int | None:
    if _is(plan, match, one=1.0):
        alpha = -_number(plan, match, "minus_alpha", -1.0)
        return plan.eltwise(_value(plan, match), "elu", alpha)
    return None


def _axes(plan: OneDnnProgram, match: Match, name: str, rank: int) -> list[int] | None:
    axes = plan.graph.nodes[match.bindings[name]].attributes.get("axis")
    if axes is None:
        return list(range(rank))
    return sorted(int(a) % rank for a in ([axes] if isinstance(axes, int) else axes))


def _build_norm(plan: OneDnnProgram, match: Match) -> int | None:
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


_X = anything("x")

COMPOSITES: tuple[Composite, ...] = (
    Composite("layer_norm", chains.layer_norm(_X), _build_norm),
    Composite("norm", chains.norm(_X), _build_norm),
    Composite("gelu_erf", chains.gelu_erf(_X), _gelu_erf),
    Composite("gelu_tanh", chains.gelu_tanh(_X), _gelu_tanh),
    Composite("hardswish", chains.hardswish(_X), _hardswish),
    Composite("silu", chains.silu(_X), _silu),
    Composite("mish", chains.mish(_X), _mish),
    Composite("elu", chains.elu(_X), _elu),
    Composite("softplus", chains.softplus(_X), _softplus),
    Composite("hardsigmoid", chains.hardsigmoid(_X), _hardsigmoid),
)
"""All composites, larger ones first: the first that fits claims its operators."""

FOUND = Claims(COMPOSITES)
