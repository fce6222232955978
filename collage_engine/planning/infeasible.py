"""Why there is no placement, in the user's words: pins, names of nodes, and reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage_engine.planning.refusals import named_refusal_text, refusal_text
from collage_engine.records.graph import GraphRecord, Node, nodes_of
from collage_engine.records.operator_titles import NodeTitles
from collage_engine.records.pin import Pin
from collage_engine.records.refusal import Refusal
from collage_engine.search.problem import Answer, Conflict, Infeasible
from collage_engine.wording import constraints as say

WithoutCandidates = Mapping[str, Mapping[int, Refusal]]
"""Toolchain instance to operator number to why it has no candidate for it."""
NODES_NAMED = 3
"""Nodes that a sentence names one by one; the others are counted (chosen)."""


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
    found = answer.infeasible
    assert found is not None
    calls = graph.calls
    conflicts: tuple[Infeasible | Conflict, ...] = (found, *found.further)
    first, *further = (
        {
            "reason": _reason(calls, pins, conflict, without_candidates),
            "pins": [_text(pins[k]) for k in conflict.pins],
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
    return {**first, "reason": say.BESIDES.join(reasons), "further": further}


def _reason(
    calls: Sequence[Node],
    pins: Sequence[Pin],
    found: Infeasible | Conflict,
    without_candidates: WithoutCandidates,
) -> str:
    blamed = [pins[k] for k in found.pins]
    why = _why_nodes(calls, blamed, found.nodes, without_candidates)
    if not blamed and not found.limits:
        unmeasured = say.NOT_MEASURED_FOR.format(nodes=_named(calls, found.nodes))
        return why or (unmeasured if found.nodes else found.reason)
    quoted = [f"'{_text(pin)}'" for pin in blamed]
    if found.limits:
        return _beyond_limits(calls, found, quoted)
    if len(blamed) == 1:
        sentence = say.PIN_NOT_HONOURED.format(pin=quoted[0])
        why = why or {"exactly": say.NONE_EXACTLY, "together": say.NONE_HOLDS_ALL}.get(
            blamed[0].kind, ""
        )
    else:
        sentence = say.PINS_NOT_TOGETHER.format(pins=", ".join(quoted[:-1]), last=quoted[-1])
    if not why:
        left = say.NONE_LEFT_FOR.format(nodes=_named(calls, found.nodes))
        why = left if found.nodes else say.NO_COMBINATION
    return say.WITH_REASON.format(sentence=sentence, reason=why)


def _beyond_limits(calls: Sequence[Node], found: Infeasible | Conflict, pins: Sequence[str]) -> str:
    """Name the limits that leave no placement, the pins that matter, and uncovered nodes."""
    sentence = say.NONE_KEEPS_TO.format(limits=found.limits_text)
    if pins:
        template = say.WITH_PINS if len(pins) > 1 else say.WITH_PIN
        sentence = template.format(sentence=sentence, pins=" and ".join(pins))
    if not found.nodes:
        return sentence
    reason = say.NONE_LEFT_FOR.format(nodes=_named(calls, found.nodes))
    return say.WITH_REASON.format(sentence=sentence, reason=reason)


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
    wanted = {pin.toolchain for pin in blamed if pin.kind in ("on", "exactly") and pin.toolchain}
    if len(blamed) == 1 and blamed[0].kind == "device":
        return say.NONE_ON_DEVICE.format(nodes=named, device=blamed[0].device)
    instances = [name for name in without_candidates if not wanted or _is_one_of(name, wanted)]
    if len(wanted) == 1 and not instances:
        used = ", ".join(dict.fromkeys(name.partition("[")[0] for name in without_candidates))
        return say.NOT_OF_THIS_RUN.format(toolchain=next(iter(wanted)), used=used)
    text = refusal_text if wanted else named_refusal_text
    reasons = [
        text(without_candidates[name][node])
        for node in nodes[:NODES_NAMED]
        for name in instances
        if node in without_candidates[name]
    ]
    refused_by_all = instances and all(nodes[0] in without_candidates[i] for i in instances)
    if len(wanted) > 1 or not refused_by_all:
        return ""
    why = "; ".join(dict.fromkeys(reasons))
    if blamed:
        toolchain = next(iter(wanted), say.NO_TOOLCHAIN)
        return say.HAS_NO_CANDIDATE.format(toolchain=toolchain, nodes=named, why=why)
    return say.NOTHING_TAKES.format(nodes=named, why=why)


def _is_one_of(instance: str, wanted: set[str]) -> bool:
    return instance in wanted or instance.partition("[")[0] in wanted


def _named(calls: Sequence[Node], operators: Sequence[int]) -> str:
    """Return ``'conv1' (Conv), 'fc' (MatMul) and 7 more nodes``."""
    named, titles, owners = [], NodeTitles(calls), nodes_of(calls)
    nodes = list({owners[number]: number for number in reversed(operators)}.values())[::-1]
    for number in nodes[:NODES_NAMED]:
        op = titles[number]
        names = calls[number].onnx_nodes
        if names:
            named.append(say.NAMED_NODE.format(name=names[0], type=op))
        else:
            named.append(say.NUMBERED_NODE.format(number=number, type=op))
    left = len(nodes) - NODES_NAMED
    text = ", ".join(named)
    if left <= 0:
        return text
    return (say.MORE_NODES if left > 1 else say.ONE_MORE_NODE).format(nodes=text, left=left)


def _text(pin: Pin) -> str:
    return pin.text or pin.kind
