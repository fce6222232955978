"""Remembers, in the store, the cover that a confirmation chose, for later runs of the same model.

Costs within the model scatter from run to run, so that another run may rank other covers first. The
one that was the fastest before takes part in each later confirmation until it has clearly lost in
several, one after the other: one process of a module may be a sixth slower than the next one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable

import msgspec

from collage_engine.candidates.menu import threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.records.candidate import Candidate
from collage_engine.records.errors import MeasureError
from collage_engine.records.typed import convert
from collage_engine.run.problem_data import ProblemData
from collage_engine.search.api import check
from collage_engine.trials.baselines import COLLAGE
from collage_engine.trials.confirmation import Confirmation

_LOG = logging.getLogger(__name__)

LOST_BEFORE_FORGOTTEN = 2
"""Confirmations, one after the other, that a cover clearly loses before it is forgotten; chosen.
With one, 11 of 20 runs of mnist on an idle machine agreed; with two, and ties between covers
counted, 18 did (``tests/benchmarks/RESULTS.md``)."""


class RememberedCover(msgspec.Struct, frozen=True, kw_only=True):
    """The cover that takes part in later confirmations."""

    cover: tuple[str, ...] = ()
    """Ids of its candidates, in the order they run; empty: there is none."""
    lost: int = 0
    """In how many confirmations it has clearly lost since it was last chosen or tied."""


def remembered_cover(open_model: OpenModel, data: ProblemData) -> tuple[Candidate, ...]:
    """Return the cover that an earlier confirmation chose, in the order it runs.

    Returns:
        Its candidates; empty where there is none, where one of them is no longer found or has no
        cost, and where it breaks a pin or limit of this run.
    """
    try:
        ids = _known(open_model, data).cover
    except MeasureError as error:
        _LOG.warning("the best cover of earlier runs is not known: %s", error)
        return ()
    if not ids or not all(name in data.by_id for name in ids):
        return ()
    if not isinstance(check(data.problem(), ids), float):
        return ()
    return tuple(data.by_id[name] for name in ids)


def remember(open_model: OpenModel, data: ProblemData, confirmation: Confirmation) -> None:
    """Keep the cover that a confirmation chose.

    Where a baseline won, the cover that was remembered stays if it is tied with that or was not
    timed. If it clearly lost in ``LOST_BEFORE_FORGOTTEN`` confirmations running, a tied cover takes
    its place; where there is none, it is forgotten. A store that cannot be written keeps nothing.
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
        known = _known(open_model, data)
        cover = frozenset(known.cover)
        has_lost = cover in timed and cover not in map(frozenset, covers)
        lost = known.lost + 1 if has_lost else 0 if cover in timed else known.lost
        if winner.kind == COLLAGE:
            new = RememberedCover(cover=_ids(winner.cover))
        elif not known.cover or lost >= LOST_BEFORE_FORGOTTEN:
            new = RememberedCover(cover=covers[0] if covers else ())
        else:
            new = msgspec.structs.replace(known, lost=lost)
        if new != known:
            open_model.store.put_constant(_name(open_model, data), msgspec.to_builtins(new))


def _known(open_model: OpenModel, data: ProblemData) -> RememberedCover:
    """Return what the store remembers; nothing where its value is something else.

    Raises:
        MeasureError: The store cannot be read.
    """
    value = open_model.store.constant(_name(open_model, data))
    try:
        found: RememberedCover = convert(value or {}, RememberedCover)
    except msgspec.ValidationError as error:
        _LOG.warning("the best cover of earlier runs is not known: %s", error)
        return RememberedCover()
    return found


def _ids(cover: Iterable[Candidate]) -> tuple[str, ...]:
    """Return the ids of a cover's candidates, in the order in which they run."""
    return tuple(candidate.id for candidate in cover)


def _name(open_model: OpenModel, data: ProblemData) -> str:
    """Return the name, in the store, of the best cover of a model under some settings."""
    model, settings = open_model.model.record, data.settings
    shapes = ",".join(
        f"{name}={'x'.join(map(str, at))}" for name, at in sorted(model.shapes.items())
    )
    how = f"{settings.target}, {threads_of(settings)} threads, {settings.precision}"
    return f"best cover of {model.sha256} {shapes}: {how}, {settings.objective} {settings.streams}"
