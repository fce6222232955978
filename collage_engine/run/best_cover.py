"""Remembers, in the store, the cover that a confirmation chose, for later runs of the same model.

Costs within the model scatter from run to run, so that another run may rank other covers first. The
one that was the fastest before takes part in each later confirmation: no run forgets it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable

from collage_engine.candidates.menu import threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.records.candidate import Candidate
from collage_engine.records.errors import MeasureError
from collage_engine.run.problem_data import ProblemData
from collage_engine.search.api import check
from collage_engine.trials.baselines import COLLAGE
from collage_engine.trials.confirmation import Confirmation

_LOG = logging.getLogger(__name__)


def remembered_cover(open_model: OpenModel, data: ProblemData) -> tuple[Candidate, ...]:
    """Return the cover that an earlier confirmation chose, in the order it runs.

    Returns:
        Its candidates; empty where there is none, where one of them is no longer found or has no
        cost, and where it breaks a pin or limit of this run.
    """
    try:
        ids = open_model.store.constant(_name(open_model, data))
    except MeasureError as error:
        _LOG.warning("the best cover of earlier runs is not known: %s", error)
        return ()
    if (
        not isinstance(ids, list)
        or not ids
        or not all(name in data.by_id for name in map(str, ids))
    ):
        return ()
    if not isinstance(check(data.problem(), ids), float):
        return ()
    return tuple(data.by_id[name] for name in ids)


def remember(open_model: OpenModel, data: ProblemData, confirmation: Confirmation) -> None:
    """Keep the cover that a confirmation chose.

    Where a baseline won, the cover that was remembered stays if it is tied with that or was not
    timed: one tie more, in a slow stretch of the machine, says nothing against it. If it clearly
    lost, a tied cover takes its place; where there is none, it is forgotten. A store that cannot be
    written keeps nothing.
    """
    tied = [
        one.contender for one in confirmation.results if one.contender.name in confirmation.tied
    ]
    covers = [_ids(one.cover) for one in tied if one.kind == COLLAGE]
    timed = {
        frozenset(_ids(one.contender.cover))
        for one in confirmation.results
        if one.measured_us is not None
    }
    winner = confirmation.winner.contender
    with contextlib.suppress(MeasureError):
        name = _name(open_model, data)
        stored = open_model.store.constant(name)
        known = frozenset(map(str, stored)) if isinstance(stored, list) else frozenset()
        if winner.kind == COLLAGE:
            open_model.store.put_constant(name, _ids(winner.cover))
        elif not known or (known in timed and known not in map(frozenset, covers)):
            chosen = covers[0] if covers else []
            if known or chosen:
                open_model.store.put_constant(name, chosen)


def _ids(cover: Iterable[Candidate]) -> list[str]:
    return [candidate.id for candidate in cover]


def _name(open_model: OpenModel, data: ProblemData) -> str:
    """Return the name, in the store, of the best cover of a model under some settings."""
    model, settings = open_model.model.record, data.settings
    shapes = ",".join(
        f"{name}={'x'.join(map(str, at))}" for name, at in sorted(model.shapes.items())
    )
    how = f"{settings.target}, {threads_of(settings)} threads, {settings.precision}"
    return f"best cover of {model.sha256} {shapes}: {how}, {settings.objective} {settings.streams}"
