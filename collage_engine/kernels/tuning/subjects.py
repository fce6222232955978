"""What of a bare product or convolution can be tuned: its plans, and its kernel by one of them.

Bare: of the same sizes, its operands plain arrays. A convolution as a product reads its image
another way, so what is found is measured again as a candidate before it counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

from collage_engine.kernels.cuda.direct_tiles import (
    DirectPlan,
    Shape,
    direct_chosen,
    direct_plans,
)
from collage_engine.kernels.cuda.fragments import ELEMENTS, SUMS
from collage_engine.kernels.cuda.tiles import PLAIN, Plan, Sizes, chosen, plans


class Subject(Protocol):
    default: Any

    @property
    def weight(self) -> float:
        """Multiply-adds."""
        ...

    def plans(self) -> Iterable[Any]: ...

    def name(self, plan: Any) -> str: ...

    def read(self, record: dict[str, Any]) -> Any:
        """A plan from its record."""
        ...

    def kernel(self, plan: Any) -> Any:
        """The scheduled PrimFunc; its last parameter is the result."""
        ...

    def split(self, plan: Any) -> bool:
        """Whether the kernel gives parts of sums."""
        ...

    def adding(self, plan: Any) -> float:
        """Seconds that adding them takes, as an estimate."""
        ...


def subject_of(about: dict[str, Any]) -> Subject:
    """What a task's description is of."""
    return DirectSubject(about) if about["family"] == "direct" else ProductSubject(about)


class ProductSubject:
    """A product; ``about`` as ``cuda.products.described`` writes it."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.sizes, self.math = Sizes(*about["sizes"]), about["math"]
        self.architecture = about["architecture"]
        self.default = chosen(self.sizes, self.math, self.architecture)

    @property
    def weight(self) -> float:
        return float(math.prod((self.sizes.s, self.sizes.m, self.sizes.n, self.sizes.k)))

    def plans(self) -> Iterable[Plan]:
        return plans(self.sizes, self.math, self.architecture)

    def name(self, plan: Plan) -> str:
        tile, (rows, columns) = plan.tile, plan.tile.thread
        return f"{tile.m}x{tile.n}x{tile.k} by {rows}x{columns}, split {plan.split}"

    def read(self, record: dict[str, Any]) -> Plan:
        return Plan.from_record(record)

    def split(self, plan: Plan) -> bool:
        return plan.split > 1

    def adding(self, plan: Plan) -> float:
        """A launch, and its bytes at 1 TB/s."""
        if plan.split == 1:
            return 0.0
        size = self.sizes
        return 2e-6 + 4.0 * size.s * size.m * size.n * (plan.split + 1) / 1e12

    def kernel(self, plan: Plan) -> Any:
        from tvm import te

        from collage_engine.kernels.cuda.forms import Matmul, result_of
        from collage_engine.kernels.cuda.schedule import scheduled

        size, element = self.sizes, ELEMENTS.get(self.math, "float32")
        form = Matmul((size.s, size.m, size.k), (size.s, size.k, size.n), (size.s, size.m, size.n))
        sums = SUMS.get(self.math, "float32")
        given = sums if plan.split > 1 or self.math in (PLAIN, *SUMS) else element
        a = te.placeholder(form.a, element, name="a")
        b = te.placeholder(form.b, element, name="b")
        result = result_of(form, a, b, plan, element, given)
        return scheduled(te.create_prim_func([a, b, result]))


class DirectSubject:
    """A convolution with few channels a group; ``about`` as ``described_direct`` writes it."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.shape, self.architecture = Shape.from_record(about["shape"]), about["architecture"]
        self.default = direct_chosen(self.shape, self.architecture)

    @property
    def weight(self) -> float:
        shape = self.shape
        rows = shape.batch * shape.groups * shape.rows
        return float(rows * shape.channels * math.prod(shape.out) * math.prod(shape.taps))

    def plans(self) -> Iterable[DirectPlan]:
        return direct_plans(self.shape)

    def name(self, plan: DirectPlan) -> str:
        return (
            f"{plan.groups} groups, {plan.down}x{plan.across} threads of "
            f"{plan.row}x{plan.high}x{plan.wide}, {plan.deep} deep"
        )

    def read(self, record: dict[str, Any]) -> DirectPlan:
        return DirectPlan.from_record(record)

    def split(self, plan: DirectPlan) -> bool:
        return False

    def adding(self, plan: DirectPlan) -> float:
        return 0.0

    def kernel(self, plan: DirectPlan) -> Any:
        from tvm import te

        from collage_engine.kernels.cuda.direct import direct_out, noted_direct, summed
        from collage_engine.kernels.cuda.schedule_direct import scheduled_direct

        shape = self.shape
        image = te.placeholder(
            (shape.batch, shape.groups * shape.channels, *shape.image), shape.dtype, name="image"
        )
        filters = te.placeholder(
            (shape.groups, shape.channels, *shape.taps, shape.rows), shape.dtype, name="filters"
        )
        out = (shape.batch, shape.groups * shape.rows, *shape.out)
        whole = noted_direct(lambda *at: image(*at), filters, shape, plan, out)
        given = shape.dtype if shape.item > 1 else summed(shape)
        result = direct_out(whole, shape, out, given)
        return scheduled_direct(te.create_prim_func([image, filters, result]))
