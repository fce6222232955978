"""What is said of a farm: its machines, what they do, and what waits for them."""

from __future__ import annotations

from collage_engine.drawing.formatting import counted, number_text
from collage_engine.records.farm import FarmMachine, FarmStatus
from collage_engine.wording import runs as words


def working(status: FarmStatus) -> int:
    """Return how many machines are measuring now."""
    return sum(machine.state == "measuring" for machine in status.machines)


def farm_sentence(status: FarmStatus) -> str:
    """``tls://10.0.0.1:8786: 3 machines in 1 pool, 2 measuring. 14 tasks wait.``."""
    text = words.FARM.format(
        address=status.address,
        machines=counted(len(status.machines), "machine"),
        pools=counted(len(status.pools), "pool"),
        working=number_text(working(status)),
    )
    if not status.queued:
        return text
    template = words.TASK_WAITS if status.queued == 1 else words.TASKS_WAIT
    return f"{text} {template.format(tasks=counted(status.queued, 'task'))}"


def working_text(status: FarmStatus) -> str:
    """``2 of 3 machines measuring``: for the line of a run that is under way."""
    return words.MACHINES_WORKING.format(
        working=working(status), machines=counted(len(status.machines), "machine")
    )


def machine_state(machine: FarmMachine) -> str:
    """Return what a machine does, or why it does nothing."""
    if machine.state == "measuring" and machine.doing:
        return machine.doing
    return words.MACHINE_STATES.get(machine.state, machine.state)
