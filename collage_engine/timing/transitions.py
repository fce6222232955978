"""Launches and hand-overs are measured once per machine, versions and threads.

A child process builds and times chains of one-operator partitions (``chain_bench``). What they tell
is kept in the store for each device, the versions of the toolchains, and the number of threads.

A toolchain may crash the child, hang, take its memory or be far too slow. Before anything of a
toolchain runs, the child notes it (``machine.faults``): when the child ends early, the toolchain at
risk is left out, and the others are measured again in a fresh child (``call_again``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from collage_engine.candidates.menu import Menu, threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.run_control import RunControl
from collage_engine.machine.worker import (
    Worker,
    WorkerError,
    WorkerFault,
    WorkerTimeout,
    call_again,
)
from collage_engine.planning.conversions import wanted_conversions
from collage_engine.records.format import HOST, PAIR, pair_name
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.versions import MEASURING_PROTOCOL
from collage_engine.store.keys import KeyContext, constant_name
from collage_engine.store.store import Store
from collage_engine.support.errors import MeasureError
from collage_engine.support.time_limits import ANSWER_S, WORK_S, Flag, within_budget
from collage_engine.timing.chain_bench import HandoverRequest, LeftOut
from collage_engine.timing.child import measuring_environment
from collage_engine.timing.conversions import conversion_constants
from collage_engine.timing.copies import copy_constants

JOB = "collage_engine.timing.chain_bench:run_job"
"""The function that the child runs."""


def measured_constants(
    instances: Sequence[ToolchainInstance],
    context: KeyContext,
    *,
    store: Store,
    env: Mapping[str, str] | None = None,
    cancel: Flag | None = None,
    on_measuring: Callable[[], None] = lambda: None,
    on_left_out: Callable[[str], None] = lambda text: None,
    left_s: float = math.inf,
    job: str = JOB,
) -> dict[str, float]:
    """Return what launches and hand-overs cost, from the store or measured now.

    Measured between toolchains, with the first instance of each; what holds for a toolchain is
    given for all of its instances. A toolchain that cannot run the chain, or that crashed, hung or
    was far too slow in it, has no pairs.

    Args:
        instances: of all toolchains.
        context: what measurements depend on here.
        store: where known costs are, and new ones are kept.
        env: the child's variables.
        cancel: ends the child when it is set.
        on_measuring: called when they are not stored yet.
        on_left_out: takes a sentence about each toolchain that is left out, and why.
        left_s: seconds that the run has left.
        job: the child's work; tests give another one.

    Returns:
        Microseconds of ``launch`` and ``pair:<instance>:<instance>``. Nothing where the child ended
        early through nobody's fault.
    """
    default: dict[str, ToolchainInstance] = {}
    for instance in instances:
        default.setdefault(instance.toolchain, instance)
    parts = [
        [i.id, i.threads, i.precision, context.versions.get(n, ""), context.sources.get(n, "")]
        for n, i in sorted(default.items())
    ]
    about = [
        "small values, fastest samples, with who is left out",  # what is measured, and how
        parts,
        context.tvm_version,
        context.target,
        context.fingerprint,
        MEASURING_PROTOCOL,
    ]
    name = constant_name("transitions", about)
    known = store.constant(name)
    if known is None:
        on_measuring()
        step_s = within_budget(ANSWER_S, left_s)
        try:
            found = _measured(tuple(default.values()), job, env, cancel, step_s)
        except WorkerError as error:
            on_left_out(
                f"transition costs could not be measured: {error}; in this run they are not known"
            )
            return {}
        known = [found.us, found.left_out]
        if found.lasting:
            store.put_constant(name, known)
    us, left_out = known
    for toolchain, reason in left_out.items():
        on_left_out(
            f"what {toolchain} takes to hand over values is not known: measuring it, it {reason}"
        )
    return spread(us, instances)


@dataclass
class _Measured:
    """What children have told."""

    us: dict[str, float] = field(default_factory=dict)
    """The constants in microseconds, by name."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Toolchain → how it ended, after "it"."""
    lasting: bool = True
    """Whether another run would find the same; a toolchain that gave no answer in time may give one
    there, and one whose children were killed from outside may run."""

    def hear(self, message: object) -> None:
        """Take a message of the child."""
        if isinstance(message, LeftOut):
            self.left_out[message.toolchain] = message.reason

    def leave_out(self, fault: WorkerFault) -> bool:
        """Leave out the toolchain that was at risk in a child that ended; tell whether one was."""
        if fault.at_risk is None:
            return False
        self.left_out[fault.at_risk.who] = fault.how
        self.lasting &= not (fault.from_outside or isinstance(fault, WorkerTimeout))
        return True


def _measured(
    instances: Sequence[ToolchainInstance],
    job: str,
    env: Mapping[str, str] | None,
    cancel: Flag | None,
    step_s: float,
) -> _Measured:
    """Measure in a child, and again in another one each time a toolchain ends it.

    Of two toolchains that end it in a chain of both, the later one is left out.

    Args:
        instances: One of each toolchain.
        job: The child's work.
        env: The child's variables.
        cancel: Ends the child when it is set.
        step_s: Seconds that one step of the child may take.

    Raises:
        WorkerError: The child ended early while no toolchain was at risk, or the time is over.
        Cancelled: The user stopped it.
    """
    deadline, found = time.monotonic() + WORK_S, _Measured()

    def ask() -> dict[str, float]:
        left = tuple(i for i in instances if i.toolchain not in found.left_out)
        if not left:
            return {}
        request, left_s = HandoverRequest(left, step_s=step_s), deadline - time.monotonic()
        us: dict[str, float] = child.call(request, max(0.0, left_s), cancel, found.hear)
        return us

    with Worker(job, env=env, name="collage-transitions") as child:
        found.us = call_again(ask, found.leave_out)
    return found


def spread(
    constants: Mapping[str, float], instances: Sequence[ToolchainInstance]
) -> dict[str, float]:
    """Return constants between toolchain instances, from those between toolchains.

    Args:
        constants: Microseconds by name, measured with one instance of each toolchain.
        instances: All instances; each has the constants of its toolchain.
    """
    found = {name: us for name, us in constants.items() if not name.startswith(PAIR)}
    for a in instances:
        for b in instances:
            us = constants.get(pair_name(a.toolchain, b.toolchain))
            if us is not None:
                found[pair_name(a.id, b.id)] = us
    return found


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
