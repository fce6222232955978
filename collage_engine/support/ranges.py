"""Numbers that a record from a file may hold: msgspec refuses others where it reads one."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from collage_engine.support.durations import LONGEST_S

LARGEST_INTEGER = 2**63 - 1
"""Largest integer that SQLite keeps ("Datatypes in SQLite", section 2)."""
LONGEST_US = 1e6 * LONGEST_S
"""Microseconds above which no time is believed. Figures of other units have the same bound."""

Count = Annotated[int, Meta(ge=0, le=LARGEST_INTEGER)]
"""A number of things, or of bytes."""
Figure = Annotated[float, Meta(ge=0, lt=LONGEST_US)]
"""Microseconds, seconds, a rate or a share that can be shown and computed with."""
Positive = Annotated[float, Meta(gt=0, lt=LONGEST_US)]
"""The same of what was measured and takes some time."""
