"""How fast the machine's clocks were, and whether others used it, at one moment of a run."""

from __future__ import annotations

import msgspec

from collage_engine.support.typed import Positive


class MachineState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Clocks and load, as far as the system reports them."""

    at: str
    """ISO 8601, UTC."""
    mhz: float | None = None
    """Clock of the processors that this program may use: their median."""
    governor: str = ""
    """Who chooses the clock (Linux's name, such as ``performance``); several, by commas."""
    round_trip_ns: Positive | None = None
    """What a cache line takes from one core to another and back, at the beginning of a run; None:
    it was not measured, or there is one core. Some machines have several values, by the minute."""
    busy: str | None = None
    """A sentence where other programs or guests used the processors; None: they did not, or the
    system does not tell."""
