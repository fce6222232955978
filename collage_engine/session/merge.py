"""Merges what another writer of a session's file added in the meantime."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from collage_engine.records.placement import Run
from collage_engine.session.document import Document, PlacedShape


def merged(ours: Document, theirs: Document, seen: Collection[str]) -> Document:
    """Return our document with what the file holds that we have never seen.

    Args:
        ours: The document that is to be saved.
        theirs: What the file holds now.
        seen: Ids of the runs, of all shapes, that the file held when we read or wrote it last. One
            of them that ours lacks was deleted, and stays so.

    Returns:
        A document with the runs of both, the older first. Pins and settings are ours; a cost that
        only the file knows is taken over where both are of the same graph.
    """
    held = [document for _, document in theirs.placed_shapes]
    together = _with_additions(ours, held, seen)
    together.shapes = [
        PlacedShape(shape.choice, shape.document and _with_additions(shape.document, held, seen))
        for shape in ours.shapes
    ]
    return together


def _with_additions(ours: Document, held: Sequence[Document], seen: Collection[str]) -> Document:
    """Returns our document of one shape with what the file's of the same shape has beside it."""
    together = Document(**vars(ours))
    theirs = next((document for document in held if ours.continues(document)), None)
    if theirs is None:
        return together
    mine = {run.id for run in ours.runs}
    new = [run for run in theirs.runs if run.id not in mine and run.id not in seen]
    together.runs = _by_time(ours.runs, new)
    if theirs.graph == ours.graph:
        known = {c.id: c for c in theirs.candidates}
        together.candidates = [
            known[c.id]
            if c.cost.state == "unknown" and c.id in known and known[c.id].key == c.key
            else c
            for c in ours.candidates
        ]
        mine = {c.id for c in ours.candidates}
        together.candidates += [c for c in theirs.candidates if c.id not in mine]
        together.constants = theirs.constants | ours.constants
    return together


def _by_time(ours: list[Run], new: list[Run]) -> list[Run]:
    """Orders runs: ours as they are, each new one before the first of ours that began after it."""
    found = list(ours)
    for run in new:
        place = next(
            (k for k, each in enumerate(found) if each.started_at > run.started_at), len(found)
        )
        found.insert(place, run)
    return found
