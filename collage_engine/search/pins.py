"""Pins as the search sees them: each forbids some candidates.

A pin holds for partitions that contain any of its nodes, so whether a candidate may be chosen
depends on that candidate alone, and several pins forbid what any of them forbids.
"""

from __future__ import annotations

from collections.abc import Sequence

from collage_engine.search.problem import (
    HOST,
    Problem,
    ProblemCandidate,
    ProblemPin,
    toolchain_matches,
)
from collage_engine.support.text import NAMED


def forbidden_by(problem: Problem, pin: ProblemPin) -> list[int]:
    """Return the indices of the candidates that a pin rules out."""
    wanted = set(pin.nodes)
    return [i for i, each in enumerate(problem.candidates) if breaks(each, pin, wanted)]


def breaks(candidate: ProblemCandidate, pin: ProblemPin, wanted: set[int]) -> bool:
    """Tell whether a candidate may not be part of a cover under a pin.

    Args:
        candidate: A candidate; one that holds none of the pin's nodes breaks nothing.
        pin: The pin.
        wanted: The pin's nodes.
    """
    if wanted.isdisjoint(candidate.nodes):
        return False
    name = candidate.toolchain
    if pin.toolchain is not None and not toolchain_matches(pin.toolchain, name):
        return True
    if pin.not_toolchain is not None and toolchain_matches(pin.not_toolchain, name):
        return True
    if pin.device is not None and (candidate.device or HOST) != pin.device:
        return True
    if pin.exactly and wanted != set(candidate.nodes):
        return True
    return pin.together and not wanted.issubset(candidate.nodes)


def describe(pin: ProblemPin) -> str:
    """Return a pin in words: ``nodes 3, 4 on onednn``."""
    nodes = nodes_in_words(pin.nodes)
    if pin.not_toolchain is not None:
        return f"{nodes} not on {pin.not_toolchain}"
    if pin.device is not None:
        return f"{nodes} on device {pin.device}"
    text = nodes
    if pin.exactly:
        text = f"exactly {nodes} as one partition"
    elif pin.together:
        text = f"{nodes} in one partition"
    return f"{text} on {pin.toolchain}" if pin.toolchain is not None else text


def nodes_in_words(nodes: Sequence[int]) -> str:
    """Return ``node 3`` or ``nodes 3, 4 and 9 more``."""
    shown = ", ".join(map(str, nodes[:NAMED]))
    left = len(nodes) - NAMED
    numbers = f"{shown} and {left} more" if left > 0 else shown
    return ("node {numbers}" if len(nodes) == 1 else "nodes {numbers}").format(numbers=numbers)
