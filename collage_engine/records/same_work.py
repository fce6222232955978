"""How far the times of equal work may lie apart before they count as different."""

from __future__ import annotations

SAME_WORK_FACTOR = 1.06
"""Ratio of two times up to which two processes that run the same placement may differ; chosen: the
place of a process's memory alone was seen to make several percent. What is slower by more is slower
itself; what is slower by less is timed again in another process, or called a tie."""
PROCESSES = 3
"""Processes in which equal work is timed to be compared: the fewest whose median is not a mean."""
