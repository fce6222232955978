"""Launches and hand-overs are measured once per machine, versions and threads."""

from __future__ import annotations

from collections.abc import Callable

from collage_engine.candidates.menu import Menu, threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.run_control import RunControl
from collage_engine.planning.conversions import wanted_conversions
from collage_engine.records.format import HOST
from collage_engine.records.settings import RunSettings
from collage_engine.support.errors import MeasureError
from collage_engine.timing.child import measuring_environment
from collage_engine.timing.conversions import conversion_constants
from collage_engine.timing.copies import copy_constants
from collage_engine.timing.hand_overs import transition_constants as measured_constants


def transition_constants(
    open_model: OpenModel,
    menu: Menu,
    settings: RunSettings,
    control: RunControl,
    now: Callable[[str], None],
) -> dict[str, float]:
    """Return what launches, hand-overs, copies and conversions cost.

    They come from the store, or are measured now, and are kept in the store under what they depend
    on. What cannot be measured is missing, and a warning says so.

    Args:
        open_model: The model, with the store.
        menu: The run's candidates and toolchain instances.
        settings: The run's settings.
        control: The run's cancel flag, and what takes warnings.
        now: Takes a few words on what is measured.

    Returns:
        Microseconds of ``launch``, of ``pair:<from>:<to>`` for every pair of instances of the menu,
        of copies between device and host, and of ``format:…`` for every conversion that the
        candidates could need.

    Raises:
        Cancelled: The user stopped it.
    """
    # Between partitions of the device alone; to and from the host it is copies that cost.
    instances = [source.instance for source in menu.sources if not source.host]
    toolchains = dict.fromkeys(instance.toolchain for instance in instances)
    env = measuring_environment(toolchains, threads_of(settings))
    constants = measured_constants(
        instances,
        menu.keys,
        store=open_model.store,
        env=env,
        cancel=control.cancelled,
        on_measuring=lambda: now("hand-over costs of this machine, once"),
        on_left_out=control.warn,
        left_s=control.left_s(),
    )
    if len(instances) < len(menu.sources):
        constants |= _or_nothing(
            control,
            lambda: copy_constants(
                menu.keys,
                store=open_model.store,
                env=env,
                cancel=control.cancelled,
                on_measuring=lambda: now("copies between device and host, once"),
            ),
        )
    wanted = wanted_conversions(open_model.model.graph.record, menu.candidates)
    return constants | _or_nothing(
        control,
        lambda: conversion_constants(
            (each for of_one in wanted.values() for each in of_one if HOST not in each),
            threads_of(settings),
            menu.keys,
            store=open_model.store,
            env=env,
            cancel=control.cancelled,
            on_measuring=lambda: now("conversions between formats on this machine, once"),
        ),
    )


def _or_nothing(control: RunControl, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return constants; none, after a warning, where they cannot be measured."""
    try:
        return measure()
    except MeasureError as error:
        control.warn(f"{error}; in this run they are not known")
        return {}
