"""Says how convolutions and products of narrow numbers are cut into tiles."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from collage_engine.kernels.cpu.dots.problem import DotProblem
from collage_engine.kernels.cpu.writing.tile_choice import (
    MOST_POSITIONS,
    MOST_VECTORS,
    best_positions,
    fits,
    near,
    tile_cost,
)
from collage_engine.kernels.rule import AtLeastOne, Plan, PlanError
from collage_engine.kernels.target import Cpu

BLOCK_PRICE = {1: 1.4, 2: 1.04, 3: 1.02, 4: 1.0}
"""Price of a product by vectors in a block. Chosen: a broadcast of several channels takes about
two fifths of an instruction that multiplies them, which nothing hides where it serves one product
only; otherwise tie-breakers for the block with fewer broadcasts. (Eleven convolutions of 1 × 1 in
bfloat16 reached 65 to 82 products a nanosecond with one vector on Zen 4, with four 76 to 108.) It
gives a plan to start from; tuning compares them."""


class DotPlan(Plan, frozen=True):
    """Parameters of kernels that multiply several channels at once."""

    block: AtLeastOne
    """Output channels per block, in vectors of sums."""
    rows: AtLeastOne
    columns: AtLeastOne
    """Positions of a register tile: parts of one row, or several whole rows of an image."""


def default(problem: DotProblem, cpu: Cpu) -> DotPlan:
    """Returns the block that is estimated to cost least, with the tile that suits it."""
    image = problem.image
    vectors = -(-problem.co_group // cpu.lanes("float32"))

    def price(v: int) -> float:
        blocks = -(-vectors // v)
        tiles = tile_cost(cpu, v, image, best_positions(cpu, v, image))
        return tiles * blocks * BLOCK_PRICE[v]

    block = min(range(1, min(MOST_VECTORS, vectors) + 1), key=lambda v: (price(v), -v))
    return DotPlan(block, *best_positions(cpu, block, image))


def neighbours(problem: DotProblem, plan: DotPlan, cpu: Cpu) -> Iterator[DotPlan]:
    """Yields other blocks with the tiles that suit them, then other tiles."""
    rows, columns = problem.image
    vectors = -(-problem.co_group // cpu.lanes("float32"))
    for block in near(plan.block, min(MOST_VECTORS, vectors)):
        yield DotPlan(block, *best_positions(cpu, block, problem.image))
    if columns == 1:
        for height in near(plan.rows, min(rows, MOST_POSITIONS)):
            if fits(cpu, height, plan.block):
                yield replace(plan, rows=height)
        return
    for width in near(plan.columns, min(columns, MOST_POSITIONS)):
        if fits(cpu, width, plan.block):
            yield replace(plan, rows=1, columns=width)


def check(problem: DotProblem, plan: DotPlan, cpu: Cpu) -> None:
    """Checks a plan against the problem.

    Raises:
        PlanError: The block or the tile is larger than what there is, or does not fit.
    """
    rows, columns = problem.image
    if plan.block > -(-problem.co_group // cpu.lanes("float32")):
        raise PlanError(f"blocks of {plan.block} vectors for {problem.co_group} channels")
    if plan.rows > rows or plan.columns > columns:
        raise PlanError(f"tiles of {plan.rows} × {plan.columns} for {rows} × {columns}")
    if plan.rows > 1 and plan.columns != columns:
        raise PlanError("tiles of several rows that are not whole")
    positions = plan.rows * plan.columns
    if positions > 1 and not fits(cpu, positions, plan.block):
        raise PlanError(f"{positions} positions by {plan.block} vectors do not fit")
