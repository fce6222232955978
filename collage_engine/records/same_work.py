"""In how many processes equal work is timed: where their memory lies makes several percent."""

from __future__ import annotations

PROCESSES = 3
"""Processes in which equal work is timed to be compared: the fewest whose median is not a mean."""
