"""Recognises activations that exporters write as chains of operators.

Each chain is one function of the runtime where its constants have the expected values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collage_engine.partition.patterns import Pattern, anything
from collage_engine.toolchains.blas.program import Post
from collage_engine.toolchains.runtime import chains
from collage_engine.toolchains.runtime.claims import Claim, Claims

Scalar = Callable[[int], float | None]

_ROOT = 2.0**0.5
_X = anything("x")


@dataclass(frozen=True)
class Chain:
    """A function of the runtime, with the pattern of its chain and the chain's constants."""

    fn: str
    pattern: Pattern
    constants: tuple[tuple[str, float], ...] = ()
    parameters: tuple[str, ...] = ()
    """Names of the constants that the function takes as its parameters a and b."""


_HALF = (("one", 1.0), ("half", 0.5), ("two", 2.0))
CHAINS = (
    Chain("gelu_erf", chains.gelu_erf(_X), (("root", _ROOT), ("inverse_root", 1 / _ROOT), *_HALF)),
    Chain(
        "gelu_tanh",
        chains.gelu_tanh(_X),
        (("square", 2.0), ("cube", 3.0), ("k", 0.044715), ("s", (2 / np.pi) ** 0.5), *_HALF),
    ),
    Chain("hardswish", chains.hardswish(_X), (("three", 3.0), ("six", 6.0))),
    Chain("silu", chains.silu(_X)),
    Chain("hardsigmoid", chains.hardsigmoid(_X), (), ("alpha", "beta")),
)


FOUND = Claims(CHAINS)


def post_of(claim: Claim[Chain], scalar: Scalar) -> Post | None:
    """Returns the function that a chain computes; None where a constant has another value.

    Args:
        claim: The chain that was found.
        scalar: Gives the value of a constant with one element, by its node.
    """
    bound = claim.match.bindings
    for name, wanted in claim.entry.constants:
        if name in bound:
            value = scalar(bound[name])
            if value is None or not np.isclose(value, wanted, rtol=1e-3):
                return None
    given = [scalar(bound[name]) for name in claim.entry.parameters]
    if None in given:
        return None
    a, b = (*(v for v in given if v is not None), 0.0, 0.0)[:2]
    return Post(claim.entry.fn, a, b)
