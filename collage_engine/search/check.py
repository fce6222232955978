"""An independent check of covers: is it one, and what does it cost?

It shares nothing with the search but the problem's definition: it reads the problem anew, checks
disjointness, coverage, acyclicity and pins, and adds the costs up as the definition in
:mod:`collage_engine.search.problem` says, in floating point with :func:`math.fsum`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from collage_engine.records.counted import counted
from collage_engine.search.problem import HOST, PLAIN, toolchain_matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.problem import (
        CandidateId,
        Problem,
        ProblemCandidate,
        ProblemPin,
    )


def check_cover(
    problem: Problem, cover: Sequence[CandidateId], *, pins: bool = True
) -> float | str:
    """Return a cover's cost in microseconds, or the sentence that says why it is none.

    Args:
        problem: The problem.
        cover: Ids of its candidates.
        pins: Whether the problem's pins and limits on runtimes are checked too.
    """
    known = {str(c.id): c for c in problem.candidates}
    chosen: list[ProblemCandidate] = []
    for name in cover:
        candidate = known.get(str(name))
        if candidate is None:
            return f"there is no candidate {name}"
        if candidate.state != "measured" or candidate.cost_us is None:
            return f"candidate {name} is {candidate.state}, so it cannot be chosen"
        chosen.append(candidate)
    owner: dict[int, int] = {}
    for part, candidate in enumerate(chosen):
        for held in candidate.nodes:
            if held in owner:
                other = chosen[owner[held]].id
                return f"node {held} is in candidate {other} and in candidate {candidate.id}"
            owner[held] = part
    for node in problem.nodes:
        if node.id not in owner:
            return f"node {node.id} is in no candidate of the cover"
    if pins:
        violation = _violated_pin(problem, chosen) or _violated_limit(problem, chosen)
        if violation is not None:
            return violation
    cycle = _cycle(problem, owner, len(chosen))
    if cycle is not None:
        names = ", ".join(str(chosen[part].id) for part in cycle)
        return f"candidates {names} wait for each other"
    return _cost(problem, chosen, owner)


def _violated_pin(problem: Problem, chosen: list[ProblemCandidate]) -> str | None:
    """Return in words which pin the cover breaks; None when it honours all."""
    for index, pin in enumerate(problem.pins):
        for candidate in chosen:
            if set(pin.nodes) & set(candidate.nodes) and not _honours(pin, candidate):
                return f"candidate {candidate.id} breaks pin {index}"
    return None


def _violated_limit(problem: Problem, chosen: list[ProblemCandidate]) -> str | None:
    """Return in words which limit on runtimes the cover breaks; None when it keeps to all."""
    limits = problem.limits
    if limits is None:
        return None
    used: set[str] = set()
    for candidate in chosen:
        name = candidate.toolchain
        used.update(limits.needs.get(name, (name.split("[")[0],)))
    if limits.allow is not None and not used.issubset(limits.allow):
        return f"it uses {', '.join(sorted(used.difference(limits.allow)))}, which is not allowed"
    if limits.max_runtimes is not None and len(used) > limits.max_runtimes:
        return f"it uses {counted(len(used), 'runtime')}; at most {limits.max_runtimes} are allowed"
    known = {name: limits.runtimes[name] for name in used if name in limits.runtimes}
    size = limits.base_bytes + sum(runtime.bytes for runtime in known.values())
    if limits.max_bytes is not None and size > limits.max_bytes:
        return f"it takes {size} bytes; at most {limits.max_bytes} are allowed"
    if limits.licences is not None:
        for name, runtime in sorted(known.items()):
            for licence in runtime.licences:
                if licence not in limits.licences:
                    return f"{name} is under {licence}, which is not allowed"
    return None


def _honours(pin: ProblemPin, candidate: ProblemCandidate) -> bool:
    if pin.toolchain is not None and not toolchain_matches(pin.toolchain, candidate.toolchain):
        return False
    if pin.not_toolchain is not None and toolchain_matches(pin.not_toolchain, candidate.toolchain):
        return False
    if pin.device is not None and (candidate.device or HOST) != pin.device:
        return False
    if pin.exactly and set(pin.nodes) != set(candidate.nodes):
        return False
    return not (pin.together or pin.unsplit) or set(pin.nodes) <= set(candidate.nodes)


def _cycle(problem: Problem, owner: dict[int, int], parts: int) -> list[int] | None:
    """Return partitions that no order can run, a superset of a cycle; None if one can."""
    needs: list[set[int]] = [set() for _ in range(parts)]
    for node in problem.nodes:
        for producer in node.inputs:
            if owner[producer] != owner[node.id]:
                needs[owner[node.id]].add(owner[producer])
    users: list[list[int]] = [[] for _ in range(parts)]
    for part, producers in enumerate(needs):
        for producer in producers:
            users[producer].append(part)
    left = [len(n) for n in needs]
    ready = [part for part, count in enumerate(left) if count == 0]
    run = 0
    while ready:
        part = ready.pop()
        run += 1
        for user in users[part]:
            left[user] -= 1
            if left[user] == 0:
                ready.append(user)
    return None if run == parts else [part for part in range(parts) if left[part]]


def _cost(problem: Problem, chosen: list[ProblemCandidate], owner: dict[int, int]) -> float | str:
    transitions = problem.transitions
    amounts = [c.cost_us for c in chosen if c.cost_us is not None]
    amounts += [transitions.launch_us] * len(chosen)
    handover = {(a, b): us for a, b, us in transitions.pairs}
    convert = {(node, have, want): us for node, have, want, us in transitions.formats}
    crossings: set[tuple[int, str, str]] = set()
    conversions: set[tuple[int, str, str]] = set()
    for node in problem.nodes:
        target = owner[node.id]
        for producer in node.inputs:
            source = owner[producer]
            if source == target:
                continue
            one, other = chosen[source], chosen[target]
            crossings.add((producer, one.toolchain, other.toolchain))
            have, want = one.gives.get(producer, PLAIN), other.takes.get(producer, PLAIN)
            if have != want:
                conversions.add((producer, have, want))
    for output in problem.outputs:
        have = chosen[owner[output]].gives.get(output, PLAIN)
        if have != PLAIN:
            conversions.add((output, have, PLAIN))
    amounts += [handover.get((a, b), 0.0) for _, a, b in crossings]
    for conversion in conversions:
        us = convert.get(conversion)
        if us is None:
            node_id, have, want = conversion
            return f"the value of node {node_id} cannot be converted from {have} to {want}"
        amounts.append(us)
    return math.fsum(amounts)
