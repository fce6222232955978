"""What launches and hand-overs cost here: measured once per machine, versions and threads."""

from __future__ import annotations

from collections.abc import Callable

from collage_engine.measure.handover import transition_constants as measured_constants
from collage_engine.measure.measurer import measuring_environment
from collage_engine.pipeline import cancel
from collage_engine.pipeline.workspace import Menu, Workspace, threads_of
from collage_engine.records.settings import RunSettings


def transition_constants(
    workspace: Workspace, menu: Menu, settings: RunSettings, now: Callable[[str], None]
) -> dict[str, float]:
    """``launch`` and ``pair:<from>:<to>`` in µs for every pair of instances of the menu.

    Kept in the store under what they depend on (see ``measure.handover``).
    """
    instances = [offer.instance for offer in menu.offers]
    toolchains = dict.fromkeys(instance.toolchain for instance in instances)
    return measured_constants(
        instances,
        menu.keys,
        store=workspace.store,
        env=measuring_environment(toolchains, threads_of(settings)),
        cancel=cancel.EVENT,
        on_measuring=lambda: now("hand-over costs of this machine, once"),
    )
