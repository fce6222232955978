"""Describes products and convolutions with what follows them, for libraries with fused epilogues.

An *anchor* is a matmul or a convolution. It takes along a bias, one residual sum and an activation;
what a library can take, and how it is called, is its ``Dialect``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import Either, Match, Pattern, all_matches, anything, op
from collage_engine.records.graph import (
    Node,
    OperatorNumber,
    OperatorSet,
    ValueIndex,
    members,
    operator_set,
)
from collage_engine.records.operators import onnx_type
from collage_engine.records.precision import FLOAT32
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.runtime.chains import VALUES
from collage_engine.toolchains.runtime.places import Places

Ints = tuple[int, ...]


def per_axis(value: int | Sequence[int], rank: int) -> Ints:
    """Return an attribute as one number per axis; a single number holds for every axis."""
    per_dimension = tuple(map(int, value)) if isinstance(value, Sequence) else (int(value),)
    return per_dimension * rank if len(per_dimension) == 1 else per_dimension


def pads(value: int | Sequence[int], rank: int) -> tuple[Ints, Ints]:
    """Return the padding before and behind each axis, from Relax's 1, rank or 2 · rank numbers."""
    widths = per_axis(value, rank)
    return (widths, widths) if len(widths) == rank else (widths[:rank], widths[rank:])


def row_major(dims: Sequence[int]) -> Ints:
    """Return the strides, in elements, of a dense tensor whose last axis is innermost."""
    strides, step = [], 1
    for extent in reversed(dims):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


_ADDENDS = ("addend", "other_addend")
"""Names of what is added to an anchor, in the bindings of a match."""


@dataclass(frozen=True)
class Product:
    """An anchor and what follows it."""

    anchor: Node
    bindings: dict[str, ValueIndex]
    """The values to which the pattern's parts are bound, ``left`` and ``right`` among them."""
    bias: ValueIndex | None
    residual: ValueIndex | None
    epilogue: str
    """The name of the activation that follows the sums; ``none`` where there is none."""
    result: OperatorNumber
    """The operator whose value the product writes."""

    @property
    def scalars(self) -> dict[int, float]:
        """Return the values that constants of a written-out activation must have, by index."""
        return {self.bindings[n]: value for n, value in VALUES.items() if n in self.bindings}


@dataclass(frozen=True)
class Dialect:
    """The description of what products one library runs, and of how it calls them."""

    name: str
    """The library's name in messages."""
    takes: str
    """The products that it computes, in the plural, for messages."""
    anchor: Pattern
    """The pattern of a product alone: it is bound to ``anchor``, its operands to ``left`` and
    ``right``."""
    channel_axis: int
    """The axis of the result along which a bias lies."""
    epilogues: Mapping[str, Callable[[Pattern], Pattern]]
    """Functions that make the pattern of an activation of a value, by the activation's name."""
    check: Callable[[DataflowGraph, Node], None]
    """A function that raises ``UnsupportedError`` with the reason against an anchor."""
    steps: Callable[[Places, Product, str], list[dict[str, Any]]]
    """A function that writes the steps of a product in a precision, for the C++ runtime."""
    glue: Callable[[Pattern], Pattern] | None = None
    """A function that makes the pattern of what may stand between a product and what follows it,
    since it leaves every element where it is."""
    further: tuple[tuple[Pattern, Callable[[Places, Match], list[dict[str, Any]]]], ...] = ()
    """Patterns of what else it computes in one call, and functions that write its steps."""

    @cached_property
    def pattern(self) -> Pattern:
        """Returns the pattern of an anchor with sums and activation, as much as there is."""
        summed = self.anchor
        for name in _ADDENDS:
            summed = summed if self.glue is None else summed.optional(self.glue)
            summed = op("add", summed, anything(name)) | summed
        summed = summed if self.glue is None else summed.optional(self.glue)
        active = [Either((make(summed),), name=name) for name, make in self.epilogues.items()]
        return Either((*(pattern for pattern, _ in self.further), *active, summed))

    def plan_of(
        self, places: Places, nodes: OperatorSet, precision: str = FLOAT32
    ) -> tuple[dict[str, Any], bytes]:
        """Return the plan and the weights of a function.

        Args:
            places: Of the function's values.
            nodes: The function's operators.
            precision: The precision of the instance.

        Raises:
            UnsupportedError: An operator fits in no product; the text names it.
        """
        steps: list[dict[str, Any]] = []
        for product in self.products(places.graph, nodes):
            if isinstance(product, Product):
                places.check_scalars(product.scalars, product.epilogue)
                steps += self.steps(places, product, precision)
            else:
                (write,) = (w for pattern, w in self.further if pattern.name in product.bindings)
                steps += write(places, product)
        return {"steps": steps, "scratch_bytes": places.scratch}, bytes(places.weights)

    def products(self, graph: DataflowGraph, nodes: OperatorSet) -> list[Product | Match]:
        """Return the products that hold every operator of a set, in the order of their results.

        What else the library computes is there as its match.

        Raises:
            UnsupportedError: An operator fits in none; the text names it.
        """
        left = nodes
        products: list[Product | Match] = []
        for root in reversed(list(members(nodes))):
            if left >> root & 1:
                product, taken = self._ending_at(graph, root, left)
                products.append(product)
                left &= ~taken
        return products[::-1]

    def _ending_at(
        self, graph: DataflowGraph, root: OperatorNumber, left: OperatorSet
    ) -> tuple[Product | Match, OperatorSet]:
        for match in all_matches(graph, self.pattern, root):
            if not match.nodes & ~left and graph.is_closed(match.nodes, root):
                product = self._product(graph, match) if "anchor" in match.bindings else match
                if product is not None:
                    return product, match.nodes
        title = onnx_type(graph.nodes[root].op)
        raise UnsupportedError(
            f"{title}: {self.name} takes only {self.takes}, with a bias, a sum and some activations"
        )

    def _product(self, graph: DataflowGraph, match: Match) -> Product | None:
        """Return the product of a match; None where what is added is no bias and no residual."""
        bound = match.bindings
        anchor = graph.nodes[bound["anchor"]]
        self.check(graph, anchor)
        shape = tuple(anchor.type.shape)
        along = [1] * len(shape)
        along[self.channel_axis] = shape[self.channel_axis]
        roles: dict[str, ValueIndex] = {}
        for name in _ADDENDS:
            if name in bound:
                added = tuple(graph.values[bound[name]].type.shape)
                added = (1,) * (len(shape) - len(added)) + added
                is_bias = added == tuple(along) and along[self.channel_axis] > 1
                role = "bias" if is_bias else "residual"
                if (
                    role in roles
                    or match.nodes & operator_set(graph.record.producers([bound[name]]))
                    or not (is_bias or added == shape or self._lies_alike(added, shape))
                ):
                    return None
                roles[role] = bound[name]
        epilogue = next((name for name in self.epilogues if name in bound), "none")
        bias, residual = roles.get("bias"), roles.get("residual")
        return Product(anchor, bound, bias, residual, epilogue, match.root)

    def _lies_alike(self, added: Ints, shape: Ints) -> bool:
        """Tell whether elements of two shapes lie alike, where what is between may shape them."""
        return self.glue is not None and added[-1] == shape[-1] and prod(added) == prod(shape)
