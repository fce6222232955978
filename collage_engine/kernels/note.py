"""Writes and reads the note by which a kernel's decision travels through TVM's passes.

The legalisation decides how an operator is to be written before TVM fuses other operators into
its function; the loops are written afterwards. In between, the decision stands on the TIR block
that adds up, as a block annotation that TVM's passes keep. This is the only place that writes and
reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collage_engine.kernels.rule import Decision, KernelRule, Plan, Record

ANNOTATION = "collage"
"""Name of the annotation on a TIR block under which the decision stands; chosen."""


@dataclass(frozen=True)
class Note:
    """A block's annotation names a rule and holds the records of its problem and plan."""

    rule: str
    problem: Record
    plan: Record


def note(rule: KernelRule[Any, Any, Any], problem: Any, plan: Plan) -> dict[str, str]:
    """Returns the annotation for the block that adds up, for ``te.compute(attrs=…)``."""
    values = {"rule": rule.name, "problem": problem.to_record(), "plan": plan.to_record()}
    return {ANNOTATION: json.dumps(values, sort_keys=True)}


def read_note(annotations: Mapping[str, Any]) -> Note | None:
    """Returns the note among a block's annotations, if there is one."""
    if ANNOTATION not in annotations:
        return None
    return Note(**json.loads(str(annotations[ANNOTATION])))


def decision_of(found: Note, rule: KernelRule[Any, Any, Any]) -> Decision[Any, Any]:
    """Returns the decision that a note of this rule stands for.

    Raises:
        PlanError: The note's plan is not one of the rule's.
    """
    problem = rule.problem_type.from_record(found.problem)  # type: ignore[attr-defined]
    return Decision(rule, problem, rule.plan_type.from_record(found.plan))
