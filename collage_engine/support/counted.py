"""Writes numbers of things in sentences, for every room."""

from __future__ import annotations

NAMED = 4
"""Things that a sentence or a label names one by one; the others are counted. Chosen: with the
counted ones they fit a line."""


def counted(number: int, noun: str) -> str:
    """Returns ``1 partition``, ``2,358 partitions``, for nouns whose plural takes an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
