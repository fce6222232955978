"""Names, among a run's constants, of what launches and hand-overs cost, in microseconds."""

from __future__ import annotations

LAUNCH = "launch"
"""What launching a partition costs."""
PAIR = "pair:"
"""Prefix of ``pair:<from>:<to>``: what handing a value on from one toolchain instance costs."""


def pair_name(source: str, target: str) -> str:
    """Return the constant's name for two instances; their ids hold no colon."""
    return f"{PAIR}{source}:{target}"


def split_pair(name: str) -> tuple[str, str]:
    """Return the instances (from, to) that a name of :func:`pair_name` is of."""
    _, source, target = name.split(":")
    return source, target
