"""Remembers, in the store, what partitions took within models, for runs of other models.

A short run has no time to run and profile covers, and its isolated costs favour covers of many
pieces, wrongly. How much longer partitions take within a model than by themselves is mostly a fact
of the machine and of the toolchain (``trials.in_model_costs``), so what earlier runs saw corrects
the costs of such a run. What a run sees itself counts before it.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Sequence

import msgspec

from collage_engine.candidates.menu import threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.records.errors import MeasureError
from collage_engine.records.settings import RunSettings
from collage_engine.records.typed import convert
from collage_engine.records.versions import MEASURING_PROTOCOL
from collage_engine.store.store import StoreReader
from collage_engine.trials.in_model_costs import Observation

_LOG = logging.getLogger(__name__)

MODELS_KEPT = 12
"""Models whose partitions are remembered, the latest ones; chosen: different kinds are among them,
and what an older version of a toolchain showed is forgotten in time."""
PARTITIONS_KEPT = 48
"""Partitions of one model that are remembered at most, drawn at random; chosen: ten times what the
coefficients of a toolchain are fitted to at least, and no model outweighs the others."""


def remembered_observations(open_model: OpenModel, settings: RunSettings) -> list[Observation]:
    """Return what partitions took within the models of earlier runs, the latest model last.

    Returns:
        The observations of this machine, at the settings' threads and precision; empty where the
        store knows none or cannot be read.
    """
    try:
        known = _known(open_model.store, _name(settings))
    except MeasureError as error:
        _LOG.warning("costs within earlier models are not known: %s", error)
        return []
    return [one for _, observations in known for one in observations]


def remember_observations(
    open_model: OpenModel, settings: RunSettings, seen: Sequence[Observation]
) -> None:
    """Keep what partitions took within this model, instead of what an earlier run of it saw.

    A store that cannot be written keeps nothing.

    Args:
        open_model: The model.
        settings: The run's settings.
        seen: The partitions; where there are none, what was known stays.
    """
    if not seen:
        return
    model = open_model.model.record.sha256
    drawn = list(seen)
    random.Random(len(drawn)).shuffle(drawn)
    name = _name(settings)
    with contextlib.suppress(MeasureError):
        known = [one for one in _known(open_model.store, name) if one[0] != model]
        kept = [*known, (model, drawn[:PARTITIONS_KEPT])][-MODELS_KEPT:]
        open_model.store.put_constant(name, msgspec.to_builtins(kept))


def _known(store: StoreReader, name: str) -> list[tuple[str, list[Observation]]]:
    """Return the observations by model; none where the store's value is not such a list."""
    try:
        kind = list[tuple[str, list[Observation]]]
        known: list[tuple[str, list[Observation]]] = convert(store.constant(name) or [], kind)
    except msgspec.ValidationError as error:
        _LOG.warning("costs within earlier models are not known: %s", error)
        return []
    return known


def _name(settings: RunSettings) -> str:
    """Return the name, in the store, of what partitions took within models."""
    how = (settings.target, threads_of(settings), settings.precision, MEASURING_PROTOCOL)
    return ":".join(["in-model-costs", *map(str, how)])
