"""Selects the results of a program that are kept in bfloat16 between its steps.

In a bfloat16 instance convolutions and matrix products read both operands rounded to bfloat16 and
sum in float32. What is read by such products in that form is best stored in it: half the bytes,
no conversion before the next product. Everything else (softmax, normalisations, reductions, values
that leave) stays float32.
"""

from __future__ import annotations

from collage_engine.toolchains.onednn.fuse import HEAVY
from collage_engine.toolchains.onednn.steps import OneDnnProgram

CARRIES = {"pool", "eltwise", "binary", "concat", "reshape", "permute", "slice"}
"""Names of the steps whose result has the element type of their operands."""


def keep_in_bfloat16(plan: OneDnnProgram, full: frozenset[int] = frozenset()) -> None:
    """Mark the products whose results another product will read, directly or through other steps.

    A backward pass: a product wants its operands in bfloat16; a step that keeps its operands'
    type wants them as its own result is wanted; so does a product of what is added to it.
    Products of the calls ``full`` (graph indices) are left in float32, and marked so.
    """
    wanted: set[int] = set()
    for step in reversed(plan.steps):
        product = step.op in HEAVY
        if product and full.intersection(step.nodes):
            step.fields["full"] = 1
        elif product:
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
