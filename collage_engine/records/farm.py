"""What is known of a farm: its machines, its pools, and the placements that are under way on it."""

from __future__ import annotations

from typing import Literal

import msgspec

MachineState = Literal["joining", "idle", "measuring", "paused", "set aside", "refused", "lost"]
"""``joining``: it was not admitted to a pool yet; ``paused``: its speed probe has drifted;
``set aside``: it has paused too often; ``refused``: its software does not fit; ``lost``: it does
not answer any more. A machine in one of the last three gets no work."""


class FarmMachine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One machine of a farm, as the coordinator of the measuring sees it."""

    name: str
    """The name under which it joined, by default that of its host."""
    state: MachineState = "joining"
    pool: str = ""
    """Name of its pool; empty: it is in none."""
    processor: str = ""
    """Its processor in words."""
    cores: int = 0
    """Physical cores that it may use."""
    doing: str = ""
    """What it is working on, in words; empty: nothing."""
    done: int = 0
    """Tasks that it has finished for this coordinator."""
    reason: str = ""
    """Why it is in this state, or in a pool of its own."""
    drift: float | None = None
    """Share by which its last speed probe was slower than its reference; None: not read yet."""


class FarmPool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Machines whose measurements are comparable: equal processors, libraries and adapters."""

    name: str
    description: str = ""
    """The processor and its cores, in words."""
    machines: tuple[str, ...] = ()
    """Names of its machines."""
    toolchains: dict[str, str] = {}
    """The toolchains that its machines have, with their versions."""
    reason: str = ""
    """Why it is apart from another pool of the same description; empty: there is no such one."""


class FarmPlacement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model that is being placed on a farm."""

    model: str
    """Name of the model's file."""
    state: Literal["waiting", "running", "finished", "failed"] = "waiting"
    machine: str = ""
    """Where whole models are run and the placement is confirmed; empty: not chosen yet."""
    pool: str = ""
    stage: str = ""
    """The stage of the run that is under way."""
    queued: int = 0
    """Groups of candidates that wait for a machine."""
    measured: int = 0
    """Groups that other machines have measured for it."""
    reason: str = ""
    """Why it has failed, or what it waits for."""


class FarmStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer of ``farm.status`` and document of ``collage farm status --json``."""

    address: str
    """Of the scheduler, such as ``tls://10.0.0.1:8786``."""
    machines: tuple[FarmMachine, ...] = ()
    pools: tuple[FarmPool, ...] = ()
    placements: tuple[FarmPlacement, ...] = ()
    queued: int = 0
    """Tasks of all placements that wait for a machine."""
    last_error: str = ""
    """The last thing that went wrong, as a sentence; empty: nothing has."""
    at: str = ""
    """When this was so, ISO 8601 in UTC."""

    def pool_for(self, wanted: str) -> FarmPool | None:
        """Return the pool that a user means, if it has a machine that works; None: there is none.

        Args:
            wanted: Its name or a part of it; empty: that with the most machines.
        """
        working = {m.pool for m in self.machines if m.state in ("idle", "measuring", "paused")}
        pools = [pool for pool in self.pools if pool.name in working]
        if not wanted:
            return max(pools, key=lambda pool: len(pool.machines), default=None)
        exact = [pool for pool in pools if pool.name == wanted]
        if exact:
            return exact[0]
        parts = [pool for pool in pools if wanted.lower() in pool.name]
        return parts[0] if len(parts) == 1 else None
