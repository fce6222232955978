"""Writes a run in short as Markdown: what was chosen, against what, and the shapes with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from collage_engine.drawing import objective
from collage_engine.drawing.figures import ending_sentences, verdict_sentence
from collage_engine.drawing.formatting import spread_text, time_text
from collage_engine.drawing.latencies import latency_rows
from collage_engine.drawing.objective import deployment_cells, objective_sentences
from collage_engine.drawing.shape_table import COLUMNS, NUMBERS, shape_cells, sharing_sentences
from collage_engine.records.placement import Run
from collage_engine.records.text import printable

LATENCIES = ("placement", "kind", "latency", "20–80 %", "against the chosen")
"""Titles of the columns of the table of baselines."""


def run_markdown(run: Run) -> str:
    """Return the run's verdict, its placement beside all baselines, and its table of shapes."""
    reference = run.placement.measured_us if run.placement else None
    rows = [
        (
            f"**{row.name}**" if row.chosen else row.name,
            row.about,
            time_text(row.us) if row.us is not None else row.reason or "not measured",
            spread_text(row.spread_us, row.us),
            row.against(reference),
        )
        for row in latency_rows(run)
    ]
    parts = [f"{verdict_sentence(run)}\n", _table(LATENCIES, LATENCIES[2:], rows)]
    parts += [f"- {text}\n" for text in [*ending_sentences(run), *objective_sentences(run)]]
    if run.deployments:
        cells = map(deployment_cells, run.deployments)
        parts.append(_table(objective.COLUMNS, objective.NUMBERS, cells))
    if run.shapes:
        parts.append(_table(COLUMNS, NUMBERS, map(shape_cells, run.shapes)))
        parts += [f"- {text}\n" for text in sharing_sentences(len(run.shapes), run.sharing)]
    return "\n".join(parts)


def _table(head: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts; columns of numbers are set to the right."""
    rule = ["---:" if title in numbers else "---" for title in head]
    lines = [head, rule, *rows]
    return "".join(
        f"| {' | '.join(printable(cell).replace('|', chr(92) + '|') for cell in line)} |\n"
        for line in lines
    )
