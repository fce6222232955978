"""Names what the numbers of a document are compared with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """A run, or a baseline of the run that is shown, with which numbers are compared."""

    kind: str = "best"
    """``best`` baseline, ``baseline`` by name, or ``run`` by id."""
    name: str = ""
