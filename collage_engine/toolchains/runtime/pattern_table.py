"""Lists the composites that both CPU libraries run as one call: an anchor and what follows it."""

from __future__ import annotations

from collage_engine.partition.patterns import Pattern, anything, constant, op
from collage_engine.toolchains.runtime import chains

CONVOLUTIONS = tuple(f"nn.conv{d}d" for d in (1, 2, 3))
DECONVOLUTIONS = tuple(f"nn.conv{d}d_transpose" for d in (1, 2, 3))


def _anchor(ops: tuple[str, ...], *, constant_weights: bool) -> Pattern:
    weights = constant("weights") if constant_weights else anything("weights")
    return op(ops, anything("data"), weights, commutative=False)


def _biased(anchor: Pattern) -> Pattern:
    return anchor.optional(lambda x: op("add", x, constant("bias")))


def _added(anchor: Pattern) -> Pattern:
    return anchor.optional(lambda x: op("add", x, anything("residual")))


def anchor_patterns(prefix: str) -> list[tuple[str, Pattern]]:
    """Returns patterns of anchors with bias, residual sum and activation.

    Each matches as much as it can.

    Args:
        prefix: What the patterns' names begin with.
    """
    tables = (
        ("conv", CONVOLUTIONS, True),
        ("deconv", DECONVOLUTIONS, True),
        ("dense", ("matmul",), True),
        ("matmul", ("matmul",), False),
    )
    found = []
    for name, ops, weights in tables:
        pattern = _biased(_anchor(ops, constant_weights=weights))
        if name != "deconv":
            pattern = _added(pattern)
        found.append((f"{prefix}.{name}", pattern.optional(chains.activation)))
    return found


def chain_patterns(prefix: str) -> list[tuple[str, Pattern]]:
    """Returns patterns of norms and activations that are written out as chains of operators."""
    x = anything("x")
    table = {
        "layer_norm": chains.layer_norm,
        "norm": chains.norm,
        "gelu_erf": chains.gelu_erf,
        "gelu_tanh": chains.gelu_tanh,
        "hardswish": chains.hardswish,
        "silu": chains.silu,
        "mish": chains.mish,
        "elu": chains.elu,
        "softplus": chains.softplus,
        "hardsigmoid": chains.hardsigmoid,
        "lrn": chains.lrn,
    }
    return [(f"{prefix}.{name}", make(x)) for name, make in table.items()]
