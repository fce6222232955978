"""Candidate partitions: sub-graphs that a rule proposes to run as one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.candidate import Candidate
from collage_engine.records.format import Formats
from collage_engine.records.graph import OperatorNumber
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import MOST_OF_A_NAME


def candidate_id(
    instance: ToolchainInstance,
    operators: Iterable[int],
    takes: Formats | None = None,
    gives: Formats | None = None,
) -> str:
    """Return the id of a candidate, which is stable within a model.

    It is ``<instance id>:<10 hexadecimal digits>``; the digits are a hash of the operators and
    formats.

    Args:
        instance: The toolchain instance that would run it.
        operators: Its operator numbers.
        takes: Formats of its inputs by operator number of their producers; absent: plain.
        gives: Formats of its outputs in the same way.
    """
    text = ",".join(map(str, sorted(operators)))
    if takes or gives:
        text += f"|{sorted((takes or {}).items())}|{sorted((gives or {}).items())}"
    return f"{instance.id}:{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def shorten(text: str) -> str:
    """Return a label with its middle left out where it is long."""
    if len(text) <= MOST_OF_A_NAME:
        return text
    half = (MOST_OF_A_NAME - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def make_candidate(
    graph: DataflowGraph,
    instance: ToolchainInstance,
    operators: tuple[OperatorNumber, ...],
    *,
    rule: str,
    composites: tuple[tuple[str, tuple[OperatorNumber, ...]], ...] = (),
    device: str = "",
    takes: Formats | None = None,
    gives: Formats | None = None,
) -> Candidate:
    """Return the record of a candidate, unmeasured and without a key.

    Args:
        graph: The dataflow graph.
        instance: The toolchain instance that would run it.
        operators: Its operators, ascending.
        rule: Names of the rules that found it.
        composites: Name and operators of every library call inside.
        device: Where it runs; empty: on its instance's device.
        takes: Formats of its inputs by operator number of their producers; absent: plain.
        gives: Formats of its outputs in the same way.
    """
    ops = [graph.nodes[o].op for o in operators]
    return Candidate(
        id=candidate_id(instance, operators, takes, gives),
        instance=instance,
        nodes=operators,
        label=shorten("+".join(ops)),
        rule=rule,
        composites=composites,
        device=device or instance.device,
        takes=dict(takes or {}),
        gives=dict(gives or {}),
    )
