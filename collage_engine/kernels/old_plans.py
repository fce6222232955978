"""Upgrades choices of tuned tables that were written before rules had typed plans.

Such a table is still named by sessions and artifacts that are exported again, so it has to give
the kernels that it gave. An old choice is a plain dictionary without the name of a rule: a
convolution's has the rule as ``way``, truth values are 0 and 1, what was left out was estimated by
the writer, and what did not fit the problem was silently replaced by the estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from collage_engine.kernels.rule import RULE, Decision, KernelRule, PlanError, Record, Registry

TRUTH_VALUES = ("inside", "pack")
"""Parameters that were written as 0 and 1."""
DEPTHWISE = "depthwise"
"""The way of convolutions that had one name for both orders of the data."""


def upgraded(
    record: Mapping[str, Any], default: Decision[Any, Any], rules: Registry, machine: Any
) -> Record:
    """Returns a choice in the present form; one that is in it already is given back.

    Args:
        record: The choice as a table has it.
        default: What would be done without the table.
        rules: All rules.
        machine: What the problem is computed on.

    Returns:
        The rule's name and its plan's parameters. Parameters that the old form left out, or that
        did not fit the problem, have the rule's default value.
    """
    if RULE in record:
        return dict(record)
    parameters = dict(record)
    way = parameters.pop("way", None)
    rule = _rule_of(way, default, rules, machine)
    problem = default.problem
    plan = rule.default(problem, machine).to_record()
    known = {each.name for each in fields(rule.plan_type)}
    given = {
        name: bool(value) if name in TRUTH_VALUES else value
        for name, value in parameters.items()
        if name in known
    }
    if _fits(rule, problem, {**plan, **given}, machine):
        return {RULE: rule.name, **plan, **given}
    # Parameters are tried one by one: what did not fit the problem was replaced by the estimate.
    for name, value in given.items():
        if _fits(rule, problem, {**plan, name: value}, machine):
            plan = {**plan, name: value}
    return {RULE: rule.name, **plan}


def _rule_of(
    way: str | None, default: Decision[Any, Any], rules: Registry, machine: Any
) -> KernelRule[Any, Any, Any]:
    """Returns the rule that an old choice meant: the named one if it matches, else the default."""
    if way is None or way == DEPTHWISE:
        return default.rule
    found = [r for r in rules.matching(default.problem, machine) if r.name == f"conv {way}"]
    if found:
        return found[0]
    other = rules.default(default.problem, machine, multiplied_out=True)
    return default.rule if other is None else other.rule


def _fits(rule: KernelRule[Any, Any, Any], problem: Any, record: Record, machine: Any) -> bool:
    try:
        rule.check(problem, rule.plan_type.from_record(record), machine)
    except PlanError:
        return False
    return True
