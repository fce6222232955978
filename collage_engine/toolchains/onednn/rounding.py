"""Rounds the weights of a program's products to bfloat16, with balanced errors."""

from __future__ import annotations

import numpy as np

from collage_engine.kernels.rounding import balanced
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
    if len(readers[value]) != 1 or plan.types[value] != "float32":
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
