"""The results file of ``tests.benchmarks.peers`` read, and written as Markdown."""

from __future__ import annotations

from pathlib import Path

from collage_engine.drawing.formatting import time_text
from collage_engine.records.errors import UsageError
from tests.benchmarks.peers_report import (
    PeerEntry,
    PeersResult,
    decode_peers,
    groups,
    headings,
    notes,
    ratios,
    table,
    verdicts,
)


def read_peers(path: Path) -> PeersResult:
    """Read a results file; UsageError says what is wrong with it."""
    try:
        return decode_peers(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def markdown(result: PeersResult) -> str:
    """Render all results as Markdown."""
    lines = [*headings(result), ""]
    for heading, entries in groups(result):
        head, rows = table(entries)
        lines += [f"**{heading}**, ms, median (20th–80th percentile of rounds):", ""]
        lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        lines += [""]
        lines += [f"- {verdict}" for verdict in verdicts(entries)]
        lines += [f"- \\* {note}" for note in notes(entries)]
        lines += [""]
    return "\n".join(lines)


def one_line(entry: PeerEntry) -> str:
    """Format an entry in one line, for the running benchmark."""
    times = "  ".join(
        f"{p.name} {time_text(p.us) if p.us is not None else p.reason}" for p in entry.peers
    )
    return f"{entry.model}, {entry.threads} thr: {times} | {ratios(entry)}"
