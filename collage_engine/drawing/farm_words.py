"""What is said of a farm: its machines, what they do, and what waits for them."""

from __future__ import annotations

from collage_engine.drawing.formatting import counted, number_text
from collage_engine.records.farm import FarmMachine, FarmStatus

STATE_WORDS = {
    "joining": "joining",
    "idle": "idle",
    "measuring": "measuring",
    "paused": "paused: its speed has drifted",
    "set aside": "set aside: it paused too often",
    "refused": "refused: its software does not fit",
    "lost": "lost: it does not answer",
}
"""State of a machine → what it is called."""


def working(status: FarmStatus) -> int:
    """Return how many machines are measuring now."""
    return sum(machine.state == "measuring" for machine in status.machines)


def farm_sentence(status: FarmStatus) -> str:
    """``tls://10.0.0.1:8786: 3 machines in 1 pool, 2 measuring. 14 tasks wait.``."""
    text = (
        f"{status.address}: {counted(len(status.machines), 'machine')} in "
        f"{counted(len(status.pools), 'pool')}, {number_text(working(status))} measuring."
    )
    if status.queued:
        wait = "waits" if status.queued == 1 else "wait"
        text += f" {counted(status.queued, 'task')} {wait} for a machine."
    return text


def working_text(status: FarmStatus) -> str:
    """``2 of 3 machines measuring``: for the line of a run that is under way."""
    return f"{working(status)} of {counted(len(status.machines), 'machine')} measuring"


def machine_state(machine: FarmMachine) -> str:
    """Return what a machine does, or why it does nothing."""
    if machine.state == "measuring" and machine.doing:
        return machine.doing
    return STATE_WORDS.get(machine.state, machine.state)
