"""Writes and reads the note by which a kernel's decision travels through TVM's passes.

The legalisation decides how an operator is to be written before TVM fuses other operators into
its function; the loops are written afterwards. In between, the decision stands on the TIR block
that adds up, as a block annotation that TVM's passes keep. This is the only place that writes and
reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from collage_engine.kernels.rule import Decision, KernelRule, Plan, Record
from collage_engine.support.typed import convert, decode

ANNOTATION = "collage"
"""Name of the annotation on a TIR block under which the decision stands: the project's own."""


class Note(msgspec.Struct, frozen=True):
    """A block's annotation names a rule and holds the records of its problem and plan."""

    rule: str
    problem: Record
    plan: Record


def note(rule: KernelRule[Any, Any, Any], problem: Any, plan: Plan) -> dict[str, str]:
    """Returns the annotation for the block that adds up, for ``te.compute(attrs=…)``."""
    written = {"rule": rule.name, "problem": problem, "plan": plan}
    return {ANNOTATION: msgspec.json.encode(written, order="sorted").decode()}


def read_note(annotations: Mapping[str, Any]) -> Note | None:
    """Returns the note among a block's annotations, if there is one."""
    return decode(str(annotations[ANNOTATION]), Note) if ANNOTATION in annotations else None


def decision_of(found: Note, rule: KernelRule[Any, Any, Any]) -> Decision[Any, Any]:
    """Returns the decision that a note of this rule stands for."""
    problem: Any = convert(found.problem, rule.problem_type)
    return Decision(rule, problem, convert(found.plan, rule.plan_type))
