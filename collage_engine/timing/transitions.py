"""Launches, transitions, copies and conversions are measured once per machine and versions.

A child process builds and times chains of one-operator partitions (``chain_bench``), another one
copies and conversions (``conversions``). What they tell is kept in the store under what it depends
on: the device, the versions of TVM and of the toolchains, and the number of threads.

A toolchain may crash the child, hang, take its memory or be far too slow. Before anything of a
toolchain runs, the child notes it (``machine.faults``): when the child ends early, the toolchain at
risk is left out, and the others are measured again in a fresh child (``call_again``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from collage_engine.candidates.catalog import CandidateCatalog, threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.run_control import RunControl
from collage_engine.machine.worker import (
    Worker,
    WorkerError,
    WorkerFault,
    WorkerTimeout,
    call_again,
    call_in_child,
)
from collage_engine.planning.conversions import wanted_conversions
from collage_engine.records.format import HOST, conversion_constant
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.versions import MEASURING_PROTOCOL
from collage_engine.store.keys import KeyContext, constant_name
from collage_engine.store.store import Store
from collage_engine.support.time_limits import ANSWER_S, WORK_S, within_budget
from collage_engine.timing.chain_bench import TransitionRequest
from collage_engine.timing.child import measuring_environment
from collage_engine.timing.conversions import Conversion, ConversionRequest
from collage_engine.toolchains.registry import format_converter
from collage_engine.toolchains.sources import source_hash

TRANSITIONS = "collage_engine.timing.chain_bench:run_job"
CONVERSIONS = "collage_engine.timing.conversions:time_conversions"
COPIES = "collage_engine.timing.conversions:time_copies"
"""The functions that children run."""


@dataclass(frozen=True, kw_only=True)
class ConstantsBench:
    """Measures constants of this machine in child processes, each once.

    Attributes:
        context: What measurements depend on here.
        store: Where known constants are, and new ones are kept.
        control: Ends a child, takes sentences about what cannot be measured, and knows the seconds
            that the run has left.
        env: The children's variables.
        now: Takes a few words on what is measured, where it is not in the store.
    """

    context: KeyContext
    store: Store
    control: RunControl
    env: Mapping[str, str] | None = None
    now: Callable[[str], None] = lambda text: None

    def transitions(
        self, instances: Sequence[ToolchainInstance], job: str = TRANSITIONS
    ) -> dict[str, float]:
        """Return what launches and transitions cost.

        Measured between toolchains, with the first instance of each. A toolchain that cannot run
        the chain, or that crashed, hung or was far too slow in it, has no pairs.

        Args:
            instances: Of all toolchains.
            job: The child's work; tests give another one.

        Returns:
            Microseconds of ``launch`` and ``pair:<toolchain>:<toolchain>``. Nothing where the child
            ended early through nobody's fault.
        """
        default: dict[str, ToolchainInstance] = {}
        for instance in instances:
            default.setdefault(instance.toolchain, instance)
        versions, sources = self.context.versions, self.context.sources
        parts = [
            [i.id, i.threads, i.precision, versions.get(n, ""), sources.get(n, "")]
            for n, i in sorted(default.items())
        ]
        about = "small values, fastest samples, with who is left out"  # what is measured, and how
        name = self._name("transitions", about, parts)
        stored = self.store.constant(name)
        if stored is None:
            self.now("transition costs of this machine, once")
            try:
                times, faults = self._without_culprits(tuple(default.values()), job)
            except WorkerError as error:
                return self._not_known("transition costs", error)
            stored = [times, {toolchain: fault.how for toolchain, fault in faults.items()}]
            # One that gave no answer in time may give one in another run, and one whose children
            # were killed from outside may run there.
            if not any(f.from_outside or isinstance(f, WorkerTimeout) for f in faults.values()):
                self.store.put_constant(name, stored)
        us, left_out = stored
        for toolchain, reason in left_out.items():
            self.control.warn(
                f"what {toolchain} takes to hand over values is not known: measuring it, it "
                f"{reason}"
            )
        return dict(us)

    def copies(self) -> dict[str, float]:
        """Return what copies between device and host cost, by the names of ``records.format``."""
        name = constant_name("copies", [self.context.fingerprint, MEASURING_PROTOCOL])
        known: dict[str, float] | None = self.store.constant(name)
        if known is None:
            what = "copies between device and host"
            known = self._measured(what, COPIES, None)
            if known:
                self.store.put_constant(name, known)
        return known

    def conversions(
        self, conversions: Iterable[Conversion], threads: int, job: str = CONVERSIONS
    ) -> dict[str, float]:
        """Return what conversions cost.

        Args:
            conversions: Logical type, from format, to format.
            threads: Of the kernels.
            job: The child's work; tests give another one.

        Returns:
            Microseconds by ``records.format.conversion_constant``; nothing where some cannot be
            measured.
        """
        wanted = {conversion_constant(*conversion): conversion for conversion in conversions}
        name = self._name("conversions", threads, source_hash(type(format_converter())))
        stored: dict[str, float] = dict(self.store.constant(name) or {})
        missing = tuple(each for key, each in wanted.items() if key not in stored)
        if missing:
            what = "conversions between formats on this machine"
            measured_us = self._measured(what, job, ConversionRequest(missing, threads))
            if not measured_us:
                return {}
            stored |= measured_us
            self.store.put_constant(name, stored)
        return {key: stored[key] for key in wanted}

    def _name(self, what: str, *about: object) -> str:
        """Return the name in the store of constants that depend on TVM and the processor, too."""
        context = self.context
        rest = [context.tvm_version, context.target, context.fingerprint, MEASURING_PROTOCOL]
        return constant_name(what, [*about, *rest])

    def _measured(self, what: str, job: str, request: object) -> dict[str, float]:
        """Return constants that a child measures; none, after a warning, where it cannot."""
        self.now(f"{what}, once")
        try:
            answer: dict[str, float] = call_in_child(
                job, request, timeout_s=WORK_S, cancel=self.control.cancelled, env=self.env
            )
        except WorkerError as error:
            return self._not_known(what, error)
        return answer

    def _not_known(self, what: str, error: WorkerError) -> dict[str, float]:
        self.control.warn(f"{what} could not be measured: {error}; in this run they are not known")
        return {}

    def _without_culprits(
        self, instances: Sequence[ToolchainInstance], job: str
    ) -> tuple[dict[str, float], dict[str, WorkerFault]]:
        """Measure in a child, and again in another one each time a toolchain ends it.

        Of two toolchains that end it in a chain of both, the later one is left out.

        Args:
            instances: One of each toolchain.
            job: The child's work.

        Returns:
            The constants in microseconds, by name, and how toolchains ended that are left out.

        Raises:
            WorkerError: The child ended early while no toolchain was at risk, or the time is over.
            Cancelled: The user stopped it.
        """
        deadline, faults = time.monotonic() + WORK_S, dict[str, WorkerFault]()
        step_s = within_budget(ANSWER_S, self.control.left_s())

        def leave_out(fault: WorkerFault) -> bool:
            if fault.at_risk is not None:
                faults[fault.at_risk.who] = fault
            return fault.at_risk is not None

        def ask() -> dict[str, float]:
            left = tuple(i for i in instances if i.toolchain not in faults)
            if not left:
                return {}
            request, left_s = TransitionRequest(left, step_s=step_s), deadline - time.monotonic()
            us: dict[str, float] = child.call(request, max(0.0, left_s), self.control.cancelled)
            return us

        with Worker(job, env=self.env, name="collage-transitions") as child:
            return call_again(ask, leave_out), faults


def transition_constants(
    open_model: OpenModel,
    catalog: CandidateCatalog,
    settings: RunSettings,
    control: RunControl,
    now: Callable[[str], None],
) -> dict[str, float]:
    """Return what launches, transitions, copies and conversions cost.

    They come from the store, or are measured now, and are kept in the store under what they depend
    on. What cannot be measured is missing: a warning names a toolchain that ends its process, the
    log any other.

    Args:
        open_model: The model, with the store.
        catalog: The run's candidates and toolchain instances.
        settings: The run's settings.
        control: The run's cancel flag, and what takes warnings.
        now: Takes a few words on what is measured.

    Returns:
        Microseconds of ``launch``, of ``pair:<from>:<to>`` for every pair of toolchains,
        of copies between device and host, and of ``format:…`` for every conversion that
        the candidates could need.

    Raises:
        Cancelled: The user stopped it.
    """
    # Between partitions of the device alone; to and from the host it is copies that cost.
    instances = [source.instance for source in catalog.sources if not source.host]
    toolchains = dict.fromkeys(instance.toolchain for instance in instances)
    threads = threads_of(settings)
    bench = ConstantsBench(
        context=catalog.keys,
        store=open_model.store,
        control=control,
        env=measuring_environment(toolchains, threads),
        now=now,
    )
    wanted = wanted_conversions(open_model.model.graph.record, catalog.candidates)
    between_formats = [each for of_one in wanted.values() for each in of_one if HOST not in each]
    return {
        **bench.transitions(instances),
        **(bench.copies() if len(instances) < len(catalog.sources) else {}),
        **bench.conversions(between_formats, threads),
    }
