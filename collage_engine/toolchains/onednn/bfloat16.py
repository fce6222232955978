"""Selects the results of a program that are kept in bfloat16 between its steps.

In a bfloat16 instance convolutions and matrix products read both operands rounded to bfloat16 and
sum in float32. What is read by such products in that form is best stored in it: half the bytes,
no conversion before the next product. Everything else (softmax, normalisations, reductions, values
that leave) stays float32.

The weights of these products are rounded to bfloat16 with balanced errors.
"""

from __future__ import annotations

import numpy as np

from collage_engine.kernels.rounding import balanced
from collage_engine.toolchains.onednn.fuse import HEAVY
from collage_engine.toolchains.onednn.steps import OneDnnProgram, Step

VIEWS = {"reshape", "permute"}
"""Names of the steps that only change how memory is seen."""


def round_weights(plan: OneDnnProgram, products: list[Step]) -> None:
    """Round the constants that only these products read, as their weights, in place."""
    made = {step.out: step for step in plan.steps}
    readers: dict[int, list[Step]] = {}
    for step in plan.steps:
        for value in step.reads():
            readers.setdefault(value, []).append(step)
    for step in products:
        view = _weights(plan, step, made, readers)
        if view is None:
            continue
        if step.op == "matmul":
            rows = np.moveaxis(view, -1, -2)
            view[...] = np.moveaxis(
                balanced(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape), -1, -2
            )
        else:  # [groups,] outputs, summands…
            leading = len(view.shape) - len(step.dims) + 1
            outputs = int(np.prod(view.shape[:leading]))
            view[...] = balanced(view.reshape(outputs, -1)).reshape(view.shape)


def _weights(
    plan: OneDnnProgram, step: Step, made: dict[int, Step], readers: dict[int, list[Step]]
) -> np.ndarray | None:
    """Return the constant's bytes as the product reads them; None for what others read, too."""
    chain: list[Step] = []
    value = step.fields["weights"]
    while len(readers[value]) == 1:
        if value not in made:
            break
        if made[value].op not in VIEWS:
            return None
        chain.append(made[value])
        value = made[value].fields["src"]
    offset = plan.constant_offsets.get(value)
    if step.op not in ("conv", "matmul") or value in made or offset is None:
        return None
    if len(readers[value]) != 1:
        return None
    dims = plan.dims[value]
    base = np.frombuffer(plan.blob, np.float32, int(np.prod(dims)), offset).reshape(dims)
    view = base
    for each in reversed(chain):
        if each.op == "reshape":
            view = view.reshape(each.dims)
        else:
            view = view.transpose(each.fields["axes"])
    return view if np.shares_memory(view, base) else None


CARRIES = {"pool", "eltwise", "binary", "concat", "reshape", "permute", "slice"}
"""Names of the steps whose result has the element type of their operands."""


def keep_in_bfloat16(plan: OneDnnProgram, full: frozenset[int] = frozenset()) -> None:
    """Mark the products whose results another product will read, directly or through other steps.

    A backward pass: a product wants its operands in bfloat16; a step that keeps its operands'
    type wants them as its own result is wanted; so does a product of what is added to it.
    Products of the calls ``full`` (graph indices) are left in float32, and marked so.
    """
    wanted: set[int] = set()
    rounded: list[Step] = []
    for step in reversed(plan.steps):
        product = step.op in HEAVY
        if product and full.intersection(step.nodes):
            step.fields["full"] = 1
        elif product:
            rounded.append(step)
            wanted.update((step.fields["src"], step.fields["weights"]))
        if step.out not in wanted:
            continue
        if product:
            plan.types[step.out] = "bfloat16"
        if product or step.op in CARRIES:
            wanted.update(p.value for p in step.posts if p.kind == "binary")
        if step.op in CARRIES:
            sources = [step.fields[key] for key in ("src", "other") if key in step.fields]
            wanted.update([*sources, *step.fields.get("srcs", [])])
    round_weights(plan, rounded)
