"""The sentences on pins and limits that both the search and those who ask it say."""

from __future__ import annotations

HONOURED_ANYWAY = "as the best placement does anyway"
NO_COMBINATION = "every node has candidates left, but no combination of them is a placement"
UNDECIDED = (
    "the graph is too wide to find a placement in time, or to prove that there is none: pin some "
    "nodes, or use fewer toolchains"
)
NOT_MEASURED = "what the pins ask for has not been measured yet: run again, which measures it"
