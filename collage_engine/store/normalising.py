"""Stored are raw times; costs are those times at the speed of calm moments of this machine.

A cost was divided by how much slower the speed probe was beside it than at its *reference*, a
reading of calm moments (``timing.speed_probe``). The store keeps the times as they were measured,
with the name of the probe and its reading, and normalises them when they are read: by the reference
that this store has for that probe, or, where it has none (the row came from another store), by the
one where the row was measured. So a reference that is taken anew holds for all costs at once.

Times that no probe was read beside (several threads, devices) are used as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from collage_engine.records.cost import Cost

LEAST_CHANGE = 0.05
"""A speed that differs from the reference by a smaller share counts as the reference's: that much
readings differ on a calm machine; chosen."""


def geometric_mean_us(reading: tuple[float, ...]) -> float:
    """Return what a reading of the probe (seconds of its kernels) is compared by, in µs."""
    return math.prod(reading) ** (1 / len(reading)) * 1e6


def slowness_at(reading_us: float, reference_us: float) -> float:
    """Return how much slower than at the reference the machine was.

    It is 1 where it is too near to 1 to tell.

    Args:
        reading_us: The probe's reading beside the work, as ``geometric_mean_us`` gives it.
        reference_us: Its reference, likewise.
    """
    found = reading_us / reference_us
    return found if abs(found - 1.0) > LEAST_CHANGE else 1.0


def raw_cost(cost: Cost) -> Cost:
    """Return a cost with the times that were measured, as the store keeps it.

    Of two measurements that were merged, the earlier one's times are those that it would have had
    at the later one's reading. A cost without a reading, or a raw one, is returned as it is.
    """
    if not cost.usable or cost.reading_us is None:
        return cost
    return _divided(cost, 1 / cost.slowness, slowness=1.0, probe_us=cost.probe_us)


def normalised_cost(raw: Cost, constant: Callable[[str], Any]) -> Cost:
    """Return a stored cost at this store's reference of the probe that was read beside it.

    Args:
        raw: The cost as it is stored.
        constant: A constant of this machine by its name; None where there is none.
    """
    if not raw.usable or raw.reading_us is None:
        return raw
    local = constant(raw.probe)
    reference_us = geometric_mean_us(tuple(local)) if local else raw.probe_us
    if not reference_us:
        return raw
    slowness = slowness_at(raw.reading_us, reference_us)
    return _divided(raw, slowness, slowness=slowness, probe_us=reference_us)


def _divided(cost: Cost, divisor: float, *, slowness: float, probe_us: float | None) -> Cost:
    return msgspec.structs.replace(
        cost.scaled(1 / divisor),
        cold_us=None if cost.cold_us is None else cost.cold_us / divisor,
        slowness=slowness,
        probe_us=probe_us,
    )
