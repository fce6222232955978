"""Stored costs at the speed that this machine has now by its own speed probe.

A cost was divided by how much slower than a *reference* the speed probe was beside it
(``timing.speed_probe``). The reference is a reading of calm moments, and is kept with the cost, so
that a cost that came from another store, or was measured before the reference was taken anew, is
brought to the reference of this store when it is read. Costs of another version of the probe stay
as they are: its work takes another time, but its reference, too, is of calm moments. So do costs
that name no probe: they were not normalised, or were stored before references were kept with them,
by this machine's own one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from collage_engine.records.cost import Cost

LEAST_CHANGE = 0.05
"""References that differ by a smaller share are the same: that much readings differ on a calm
machine; chosen, as ``timing.speed_probe.ProbeSettings.least_change``."""


def geometric_mean_us(reading: tuple[float, ...]) -> float:
    """What a reading of the probe (seconds of its kernels) is compared by, in µs."""
    return math.prod(reading) ** (1 / len(reading)) * 1e6


def at_local_reference(cost: Cost, constant: Callable[[str], Any]) -> Cost:
    """A stored cost at this store's reference of the same probe.

    Args:
        cost: as it was stored.
        constant: a constant of this machine by its name; None where there is none.
    """
    if not cost.probe or not cost.probe_us or not cost.usable:
        return cost
    known = constant(cost.probe)
    if not known:
        return cost
    local_us = geometric_mean_us(tuple(known))
    factor = local_us / cost.probe_us
    if abs(factor - 1.0) <= LEAST_CHANGE:
        return cost

    def scaled(us: float | None) -> float | None:
        return None if us is None else us * factor

    return msgspec.structs.replace(
        cost,
        median_us=scaled(cost.median_us),
        low_us=scaled(cost.low_us),
        high_us=scaled(cost.high_us),
        cold_us=scaled(cost.cold_us),
        repeats_us=tuple(us * factor for us in cost.repeats_us),
        slowness=cost.slowness / factor,
        probe_us=local_us,
    )
