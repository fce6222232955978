"""Pins as what they are to the search: each forbids some candidates.

A pin holds for partitions that contain any of its nodes, so whether a candidate may be chosen
depends on that candidate alone, and several pins forbid what any of them forbids.
"""

from __future__ import annotations

from collage_engine.search.problem import (
    HOST,
    Problem,
    ProblemCandidate,
    ProblemPin,
    toolchain_matches,
)


def forbidden_by(problem: Problem, pin: ProblemPin) -> list[int]:
    """Indices of the candidates that a pin rules out."""
    wanted = set(pin.nodes)
    return [
        index
        for index, candidate in enumerate(problem.candidates)
        if not wanted.isdisjoint(candidate.nodes) and not honours(candidate, pin, wanted)
    ]


def honours(candidate: ProblemCandidate, pin: ProblemPin, wanted: set[int]) -> bool:
    """Whether a candidate that holds some of the pin's nodes (``wanted``) may be chosen."""
    name = candidate.toolchain
    if pin.toolchain is not None and not toolchain_matches(pin.toolchain, name):
        return False
    if pin.not_toolchain is not None and toolchain_matches(pin.not_toolchain, name):
        return False
    if pin.device is not None and (candidate.device or HOST) != pin.device:
        return False
    if pin.exactly and wanted != set(candidate.nodes):
        return False
    return not (pin.together or pin.unsplit) or wanted.issubset(candidate.nodes)


def describe(pin: ProblemPin) -> str:
    """A pin in words: ``nodes 3, 4 on onednn``."""
    nodes = ("node " if len(pin.nodes) == 1 else "nodes ") + ", ".join(map(str, pin.nodes[:8]))
    if len(pin.nodes) > 8:
        nodes += f" and {len(pin.nodes) - 8} more"
    if pin.not_toolchain is not None:
        return f"{nodes} not on {pin.not_toolchain}"
    if pin.device is not None:
        return f"{nodes} on device {pin.device}"
    on = f" on {pin.toolchain}" if pin.toolchain is not None else ""
    if pin.exactly:
        return f"exactly {nodes} as one partition{on}"
    if pin.together or pin.unsplit:
        return f"{nodes} in one partition{on}"
    return f"{nodes}{on}"
