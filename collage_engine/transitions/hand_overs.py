"""Measures this machine's transition constants with real partitions (see ``machine.constants``).

A child process builds and times chains of one-operator partitions (``chain_bench``). What they tell
is kept in the store for each device, the versions of the toolchains, and the number of threads.

A toolchain may crash the child, hang, take its memory or be far too slow. Before anything of a
toolchain runs, the child notes it in a marker (``machine.risk_marker``): when the child ends early,
the toolchain at risk is left out, and the others are measured again in a fresh child. One that was
killed from outside is nobody's fault, and started again once.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from collage_engine.machine.risk_marker import RiskMarker
from collage_engine.machine.worker import Worker, WorkerCrashed, WorkerError, WorkerTimeout
from collage_engine.records.constants import PAIR, pair_name
from collage_engine.records.faults import FAULTS
from collage_engine.records.flag import Flag
from collage_engine.records.time_limits import ANSWER_S, WORK_S, within_budget
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.versions import MEASURING_PROTOCOL
from collage_engine.store.keys import KeyContext, constant_name
from collage_engine.store.store import Store
from collage_engine.transitions.chain_bench import HandoverRequest, LeftOut, Pair

JOB = "collage_engine.transitions.chain_bench:run_job"
"""The function that the child runs."""

LEFT_OUT = ":left out"
"""End of the name, in the store, of what is kept beside constants: toolchain → why it has none."""

WAITED = ":waited"
"""End of the name, in the store, of the seconds for which a toolchain was waited in vain."""


def transition_constants(
    instances: Sequence[ToolchainInstance],
    context: KeyContext,
    *,
    store: Store | None = None,
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
        store: where known costs are, and new ones are kept; None: they are measured.
        env: the child's variables.
        cancel: ends the child when it is set.
        on_measuring: called when they are not stored yet.
        on_left_out: takes a sentence about each toolchain that is left out, and why.
        left_s: seconds that the run has left.
        job: the child's work; tests give another one.

    Returns:
        Microseconds of ``launch``, ``pair:<instance>:<instance>`` and ``call:<instance>`` (a call
        on a single number). Nothing where the child ended early through nobody's fault.
    """
    default: dict[str, ToolchainInstance] = {}
    for instance in instances:
        default.setdefault(instance.toolchain, instance)
    parts = [
        [i.id, i.threads, i.precision, context.versions.get(n, ""), context.sources.get(n, "")]
        for n, i in sorted(default.items())
    ]
    about = [
        "small values, fastest samples",  # what is measured, and how
        parts,
        context.tvm_version,
        context.target,
        context.fingerprint,
        MEASURING_PROTOCOL,
    ]
    name = constant_name("transitions", about)
    known = store.constant(name) if store is not None else None
    left_out: dict[str, str] = {}
    step_s = within_budget(ANSWER_S, left_s)
    if known is not None and store is not None:
        left_out = store.constant(name + LEFT_OUT) or {}
        if step_s > (store.constant(name + WAITED) or step_s):
            known = None  # a toolchain gave no answer, and this run can wait longer
    if known is None:
        on_measuring()
        request = HandoverRequest(tuple(default.values()))
        try:
            measurement = _Measurement(request, job, env, cancel, step_s)
            known, left_out = measurement.run()
        except WorkerError as error:
            on_left_out(
                f"transition costs could not be measured: {error}; in this run they are not known"
            )
            return {}
        if store is not None and not measurement.was_killed:
            store.put_constant(name, known)
            store.put_constant(name + LEFT_OUT, left_out)
            store.put_constant(name + WAITED, step_s if measurement.unanswered else None)
    for toolchain, reason in left_out.items():
        on_left_out(
            f"what {toolchain} takes to hand over values is not known: measuring it, it {reason}"
        )
    return spread(known, instances)


class _Measurement:
    """Measures in a child, again without the culprit each time the child ends early."""

    def __init__(
        self,
        request: HandoverRequest,
        job: str,
        env: Mapping[str, str] | None,
        cancel: Flag | None,
        step_s: float,
    ) -> None:
        self.request = request
        self.job = job
        self.env = env
        self.cancel = cancel
        self.step_s = step_s
        self.left_out: dict[str, str] = {}
        """Toolchain → how it ended, after "it"."""
        self.was_killed = False
        """Whether a child was killed from outside: the next run measures again."""
        self.unanswered = False
        """Whether a toolchain was left out for want of an answer: a run with more time may wait."""

    def run(self) -> tuple[dict[str, float], dict[str, str]]:
        """Measure in a child, and again in another one each time a toolchain ends it.

        Returns:
            The constants in microseconds by name, and the reasons of toolchains without any, by
            name.

        Raises:
            WorkerError: The child ended early while no toolchain was at risk, or the time is over.
            Cancelled: The user stopped it.
        """
        deadline = time.monotonic() + WORK_S
        with (
            tempfile.TemporaryDirectory(prefix="collage-transitions-") as folder,
            contextlib.closing(RiskMarker(Path(folder) / "marker", create=True)) as marker,
            Worker(self.job, env=self.env, name="collage-transitions", marker=marker) as child,
        ):
            self.request = replace(self.request, marker_path=str(marker.path), step_s=self.step_s)
            while self.request.instances:
                try:
                    found: dict[str, float] = child.call(
                        self.request,
                        timeout_s=max(0.0, deadline - time.monotonic()),
                        cancel=self.cancel,
                        on_message=self.heard,
                    )
                    return found, self.left_out
                except (WorkerCrashed, WorkerTimeout) as error:
                    if time.monotonic() >= deadline:
                        raise
                    from_outside = isinstance(error, WorkerCrashed) and error.from_outside
                    if from_outside and not self.was_killed:
                        self.was_killed = True
                        continue
                    at_risk = marker.get()
                    if at_risk is None:
                        raise
                    first, _, last = at_risk.who.partition(" ")
                    self.leave_out((first, last), error)
        return {}, self.left_out

    def heard(self, message: object) -> None:
        """Take a message of the child."""
        if isinstance(message, LeftOut):
            self.left_out[message.toolchain] = message.reason

    def leave_out(self, pair: Pair, error: WorkerCrashed | WorkerTimeout) -> None:
        """Leave out the pair that was at risk when the child ended, or a whole toolchain.

        A toolchain is left out where it ran by itself, or where ``FAULTS`` of its pairs ended a
        child.

        Args:
            pair: The two toolchains of the chain that ran.
            error: How the child ended.
        """
        how = f"crashed: {error.reason}"
        if isinstance(error, WorkerTimeout):
            how = f"gave no answer within {error.seconds:g} s"
        without = (*self.request.without, pair)
        counts = Counter(name for each in without for name in set(each))
        culprits = {name for name in pair if pair[0] == pair[1] or counts[name] >= FAULTS}
        for name in culprits:
            self.left_out[name] = how
            self.unanswered |= isinstance(error, WorkerTimeout)
        self.request = replace(
            self.request,
            instances=tuple(i for i in self.request.instances if i.toolchain not in self.left_out),
            without=without,
        )


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
