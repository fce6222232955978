"""Why there is no placement, in the user's words: pins, names of nodes, and reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage_engine.records.candidate import Refusal
from collage_engine.records.graph import GraphRecord, Node, nodes_of
from collage_engine.records.operators import NodeTitles
from collage_engine.records.pin import Pin
from collage_engine.search.problem import Answer, Conflict, toolchain_matches
from collage_engine.support.text import NAMED, listed
from collage_engine.wording import sentences as say
from collage_engine.wording.sentences import named_refusal_text, refusal_text

WithoutCandidates = Mapping[str, Mapping[int, Refusal]]
"""Toolchain instance to operator number to why it has no candidate for it."""


def infeasible_details(
    graph: GraphRecord, pins: Sequence[Pin], answer: Answer, without_candidates: WithoutCandidates
) -> dict[str, object]:
    """Return what ``place --json`` prints as ``infeasible``: the reason, the pins and the nodes.

    Where several sets of pins and limits contradict each other, ``reason`` names all of them; pins,
    nodes and limits are those of the first, and ``further`` has the others.

    Args:
        graph: The model's graph.
        pins: The pins of the run.
        answer: The search's answer, which has no cover.
        without_candidates: Why instances have no candidates.
    """
    cause = answer.infeasible
    assert cause is not None
    calls = graph.nodes
    conflicts: tuple[Conflict, ...] = (cause, *cause.further)
    first, *further = (
        {
            "reason": _reason(calls, pins, conflict, without_candidates),
            "pins": [pins[k].written for k in conflict.pins],
            "pin_indices": list(conflict.pins),
            "nodes": list(conflict.nodes),
            "constraints": list(conflict.limits),
            "onnx_nodes": list(
                dict.fromkeys(name for n in conflict.nodes for name in calls[n].onnx_nodes)
            ),
        }
        for conflict in conflicts
    )
    reasons = [str(conflict["reason"]) for conflict in (first, *further)]
    return {**first, "reason": "; besides, ".join(reasons), "further": further}


def _reason(
    calls: Sequence[Node],
    pins: Sequence[Pin],
    conflict: Conflict,
    without_candidates: WithoutCandidates,
) -> str:
    blamed = [pins[k] for k in conflict.pins]
    why = _why_nodes(calls, blamed, conflict.nodes, without_candidates)
    if not blamed and not conflict.limits:
        unmeasured = f"no candidate was measured for {_named(calls, conflict.nodes)}"
        return why or (unmeasured if conflict.nodes else conflict.reason)
    quoted = [f"'{pin.title}'" for pin in blamed]
    left = f"no candidate is left for {_named(calls, conflict.nodes)}"
    if conflict.limits:
        sentence = f"none keeps to {conflict.limits_text}"
        if quoted:
            which = "pins" if len(quoted) > 1 else "pin"
            sentence += f" together with the {which} {' and '.join(quoted)}"
        return f"{sentence}: {left}" if conflict.nodes else sentence
    if len(blamed) == 1:
        sentence = f"the pin {quoted[0]} cannot be honoured"
        why = why or {
            "exactly": "no candidate is exactly these nodes",
            "together": "no candidate holds all of these nodes",
        }.get(blamed[0].kind, "")
    else:
        sentence = f"the pins {', '.join(quoted[:-1])} and {quoted[-1]} cannot hold together"
    return f"{sentence}: {why or (left if conflict.nodes else say.NO_COMBINATION)}"


def _why_nodes(
    calls: Sequence[Node],
    blamed: Sequence[Pin],
    nodes: Sequence[int],
    without_candidates: WithoutCandidates,
) -> str:
    """Say why no toolchain has a candidate for these nodes.

    Empty where there are no nodes, or one takes them, so that it is the pins or a missing cost.
    """
    if not nodes:
        return ""
    named = _named(calls, nodes)
    pinned = {pin.toolchain for pin in blamed if pin.kind in ("on", "exactly") and pin.toolchain}
    if len(blamed) == 1 and blamed[0].kind == "device":
        return f"no candidate for {named} is on the device {blamed[0].device}; there is only cpu"
    instances = [
        name
        for name in without_candidates
        if not pinned or any(toolchain_matches(each, name) for each in pinned)
    ]
    if len(pinned) == 1 and not instances:
        used = ", ".join(dict.fromkeys(name.partition("[")[0] for name in without_candidates))
        return f"{next(iter(pinned))} is not among the toolchains of this run ({used})"
    text = refusal_text if pinned else named_refusal_text
    reasons = [
        text(without_candidates[name][node])
        for node in nodes[:NAMED]
        for name in instances
        if node in without_candidates[name]
    ]
    refused_by_all = instances and all(nodes[0] in without_candidates[i] for i in instances)
    if len(pinned) > 1 or not refused_by_all:
        return ""
    why = "; ".join(dict.fromkeys(reasons))
    if blamed:
        toolchain = next(iter(pinned), "no toolchain")
        return f"{toolchain} has no candidate for {named} ({why})"
    return f"no toolchain of this run takes {named} ({why}); allow more toolchains"


def _named(calls: Sequence[Node], operators: Sequence[int]) -> str:
    """Return ``'conv1' (Conv), 'fc' (MatMul) and 7 more nodes``."""
    titles, owners = NodeTitles(calls), nodes_of(calls)
    nodes = list({owners[number]: number for number in reversed(operators)}.values())[::-1]
    names = (next((f"'{name}'" for name in calls[n].onnx_nodes), f"node {n}") for n in nodes)
    return listed([f"{name} ({titles[n]})" for n, name in zip(nodes, names, strict=True)], "node")
