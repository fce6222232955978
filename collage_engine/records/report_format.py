"""The formats of reports."""

from __future__ import annotations

from typing import Literal

ReportFormat = Literal[
    "html",
    "notebook",
    "csv",
    "latencies",
    "runs",
    "shapes",
    "json",
    "svg",
    "graphml",
    "explorer",
]
"""What a report of a run or a session may be written as."""
