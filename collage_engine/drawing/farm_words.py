"""Describes a farm in words: its machines, what they do, and what waits for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import msgspec

from collage_engine.drawing.formatting import STAGE_TITLES, counted, number_text
from collage_engine.records.farm import (
    FarmMachine,
    FarmPlacement,
    FarmPool,
    FarmStatus,
    MachineState,
)
from collage_engine.records.toolchain import ToolchainState
from collage_engine.wording import runs as words

MACHINE_STATES: tuple[MachineState, ...] = get_args(MachineState)
UNUSED: frozenset[MachineState] = frozenset({"set aside", "refused", "lost"})
"""The states in which a machine gets no work."""


def working(status: FarmStatus) -> int:
    """Return how many machines are measuring now."""
    return sum(machine.state == "measuring" for machine in status.machines)


def farm_sentence(status: FarmStatus) -> str:
    """Returns a farm's state in a sentence.

    For example ``tls://10.0.0.1:8786: 3 machines in 1 pool; 2 measuring, 1 lost. 14 tasks wait.``.
    """
    counts = {state: sum(m.state == state for m in status.machines) for state in MACHINE_STATES}
    pools = [pool for pool in status.pools if pool.machines]
    template = words.FARM if pools else words.FARM_WITHOUT_POOLS
    text = (template if status.machines else words.FARM_WITHOUT_MACHINES).format(
        address=status.address,
        machines=counted(len(status.machines), "machine"),
        pools=counted(len(pools), "pool"),
        states=", ".join(f"{number_text(n)} {state}" for state, n in counts.items() if n),
    )
    if not status.queued:
        return text
    template = words.TASK_WAITS if status.queued == 1 else words.TASKS_WAIT
    return f"{text} {template.format(tasks=counted(status.queued, 'task'))}"


def working_text(status: FarmStatus) -> str:
    """Returns ``2 of 3 machines measuring``, for the line of a run that is under way."""
    able = sum(machine.state not in UNUSED for machine in status.machines)
    return words.MACHINES_WORKING.format(working=working(status), machines=counted(able, "machine"))


def machine_state(machine: FarmMachine) -> str:
    """Return what a machine does."""
    if machine.state == "measuring" and machine.doing:
        return machine.doing
    return machine.state


def toolchains_of(pool: FarmPool, known: Iterable[ToolchainState]) -> tuple[ToolchainState, ...]:
    """Return the toolchains of a pool's machines, and those that they lack.

    Args:
        pool: A pool of a farm.
        known: What this user's engine says of the toolchains that it knows.
    """
    found = []
    left = dict(pool.toolchains)
    for state in known:
        version = left.pop(state.name, None)
        found.append(
            msgspec.structs.replace(
                state,
                available=version is not None,
                builds=False,
                version=version,
                reason=None if version is not None else words.NOT_IN_POOL.format(pool=pool.name),
                install=None,
            )
        )
    found += [ToolchainState(name=n, available=True, version=v) for n, v in sorted(left.items())]
    return tuple(found)


def placement_state(placement: FarmPlacement) -> str:
    """Return what a placement does now: its stage while it runs."""
    if placement.state != "running":
        return placement.state
    return STAGE_TITLES.get(placement.stage, placement.state).lower()
