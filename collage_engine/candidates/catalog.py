"""The catalog of a run: the toolchain instances to choose from and their candidates."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from collage_engine.candidates.host_candidates import host_sources
from collage_engine.machine.cuda import TargetChoice
from collage_engine.machine.device import device, fingerprint, physical_cores
from collage_engine.machine.faults import FaultTracker
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.importer import ImportedModel
from collage_engine.partition.enumerate import enumerate_candidates, why_not
from collage_engine.partition.rules import CandidateSource, PartitionRule
from collage_engine.records.answers import RunUpdate
from collage_engine.records.candidate import Candidate, CostTable, Refusal, records_of
from collage_engine.records.format import BYTES, LICENCE, WEIGHTS
from collage_engine.records.graph import OperatorNumber
from collage_engine.records.operators import NodeTitles, onnx_type
from collage_engine.records.placement import NanLoss, Placement
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import Target, ToolchainInstance, ToolchainState
from collage_engine.store.keys import KeyContext, KeyMaker
from collage_engine.support.errors import (
    MOST_CHARACTERS,
    ToolchainError,
    ToolchainFault,
    UsageError,
    first_line,
)
from collage_engine.support.time_limits import WORK_S
from collage_engine.support.typed import convert
from collage_engine.toolchains import registry
from collage_engine.toolchains.asking import asked, asking
from collage_engine.toolchains.base import Toolchain
from collage_engine.toolchains.capabilities import LowersToTir
from collage_engine.toolchains.registry import all_names, get, probe_all
from collage_engine.toolchains.sources import source_hash

_LOG = logging.getLogger(__name__)


def runtime_facts(names: Sequence[str], weights_bytes: int) -> dict[str, float]:
    """Return the constants about a deployment, by the names of ``records.format``.

    Args:
        names: Toolchains whose runtime libraries a placement may need.
        weights_bytes: Size of the model's weights.
    """
    facts = {WEIGHTS: float(weights_bytes)}
    for name in names:
        try:
            with asking(name):
                toolchain = registry.get(name)
                libraries = toolchain.runtime_libraries()
                size = float(sum(Path(lib.file).stat().st_size for lib in libraries))
                said = {lib.licence for lib in libraries} or {toolchain.about.licence}
        except ToolchainFault as fault:
            _LOG.info("the libraries of %s are not known: %s", name, fault)
            continue
        facts[BYTES + name] = size
        for text in said:
            for licence in re.split(r"\s+AND\s+", text):
                if licence:
                    facts[f"{LICENCE}{name}:{licence}"] = 1.0
    return facts


@dataclass(frozen=True, kw_only=True)
class Probing:
    """How toolchains are looked for: what they need is compiled the first time.

    Attributes:
        on_probe: Is called with the name of each toolchain that a child process looks for.
        ready_by: A moment of the monotonic clock; who is not ready then is left out. Those that
            the settings name are waited for, and one where none is ready.
        waited_for: Further toolchains that are waited for.
        beside: Whether those that are not ready are made ready beside what the run does.
    """

    on_probe: Callable[[str], None] = lambda name: None
    ready_by: float = math.inf
    waited_for: frozenset[str] = frozenset()
    beside: bool = False


@dataclass(frozen=True)
class CandidateCatalog:
    """What can be chosen from, for one set of settings."""

    states: tuple[ToolchainState, ...]
    """Every known toolchain, present or not; where the settings name toolchains, only those, and
    those that the run has to know besides."""
    sources: tuple[CandidateSource, ...]
    """The toolchain instances that candidates are enumerated for."""
    candidates: tuple[Candidate, ...]
    """With measurement keys."""
    costs: CostTable
    """The costs that the store held."""
    without_candidates: Mapping[str, Mapping[int, Refusal]]
    """By instance id, the operators that it has no candidate for, and why."""
    keys: KeyContext
    target: TargetChoice = field(default_factory=lambda: TargetChoice("cpu"))

    @property
    def unmeasurable(self) -> str | None:
        """Return why nothing can be timed here; None when the target's device is there."""
        if self.target.kind == "cpu" or self.target.device is not None:
            return None
        return self.target.reason

    @property
    def device_text(self) -> str:
        """Return the device that is measured on, as a person reads it."""
        if self.target.device is not None:
            return self.target.device.record().description
        return device().description

    @property
    def target_text(self) -> str:
        """Return the target as on the command line: ``cpu``, or ``cuda:sm_90a``."""
        return ":".join(filter(None, (self.target.kind, self.target.architecture)))

    @property
    def instances(self) -> dict[str, ToolchainInstance]:
        """Return the toolchain instances by id."""
        return {source.instance.id: source.instance for source in self.sources}

    @property
    def not_ready(self) -> tuple[str, ...]:
        """Return the names of the toolchains that were not waited for."""
        return tuple(state.name for state in self.states if state.late)

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions of the toolchains that are available, by name."""
        return {state.name: state.version or "" for state in self.states if state.available}

    @property
    def update(self) -> RunUpdate:
        """Return the catalog as it is handed to the listener of a run."""
        return RunUpdate(
            candidates=records_of(self.candidates, self.costs),
            without_candidates={
                name: dict(reasons) for name, reasons in self.without_candidates.items()
            },
            toolchains=list(self.states),
        )

    def source(self, instance: str) -> CandidateSource:
        """Return what is known of an instance, by its id."""
        return next(source for source in self.sources if source.instance.id == instance)


def with_keys(
    model: ImportedModel, keys: KeyContext, candidates: Iterable[Candidate]
) -> tuple[Candidate, ...]:
    """Return candidates of a model with their measurement keys."""
    makers = KeyMaker(model.graph, model.constant)
    return tuple(
        msgspec.structs.replace(c, key=keys.key(makers.form_of(c), c.instance)) for c in candidates
    )


def threads_of(settings: RunSettings) -> int:
    """Return the number of threads of a run: as asked for, or the physical cores."""
    return settings.threads or physical_cores()


def make_catalog(
    model: ImportedModel,
    settings: RunSettings,
    target: TargetChoice,
    on_host: tuple[int, ...] = (),
    probing: Probing | None = None,
    faults: FaultTracker | None = None,
) -> CandidateCatalog:
    """Enumerate the candidates of a model for a run's settings.

    Args:
        model: The imported model.
        settings: Toolchains (which exist), threads and precision.
        target: What the candidates are compiled for.
        on_host: Operator numbers that get candidates on the host too, in a run on a device.
        probing: How toolchains are looked for.
        faults: Which toolchains are out of the run; takes those that fail when they are asked.

    Raises:
        UsageError: The settings name a toolchain that has no such target.
        ToolchainError: No toolchain is available, or one that was asked for is not.
    """
    faults = faults or FaultTracker()
    while True:
        try:
            return _catalog(model, settings, target, on_host, probing or Probing(), faults)
        except ToolchainFault as fault:
            if fault.toolchain in faults.left_out:
                raise
            _LOG.warning("%s is left out", fault.toolchain)
            faults.leave_out(fault.toolchain, str(fault))


def _catalog(
    model: ImportedModel,
    settings: RunSettings,
    target: TargetChoice,
    on_host: tuple[int, ...],
    probing: Probing,
    faults: FaultTracker,
) -> CandidateCatalog:
    """Enumerate the candidates of the toolchains that were not left out."""
    graph = model.graph
    states = _states(settings, target, probing)
    for index, state in enumerate(states):
        if (reason := faults.left_out.get(state.name)) is not None:
            states[index] = msgspec.structs.replace(state, available=False, reason=reason)
    by_name = {state.name: state for state in states}
    _check_target(states, target)
    on_target, beside = _chosen_toolchains(by_name, settings, target, faults)
    threads = threads_of(settings)
    make_source = partial(source_of, graph, strict_nan=settings.strict_nan)
    sources = [
        make_source(toolchain, instance)
        for toolchain in on_target
        for instance in _instances(toolchain, settings, threads, target)
    ]
    sources += host_sources(graph, beside, threads, sources, on_host, make_source)
    if not sources:
        reasons = "; ".join(f"{state.name}: {state.reason}" for state in states)
        raise ToolchainError(f"no toolchain is available on this machine ({reasons})")
    keys = _key_context(states, target)
    candidates = with_keys(model, keys, enumerate_candidates(graph, sources))
    return CandidateCatalog(
        states=tuple(states),
        sources=tuple(sources),
        candidates=candidates,
        costs=CostTable(),
        without_candidates=_without_candidates(graph, sources, candidates),
        keys=keys,
        target=target,
    )


def _states(settings: RunSettings, target: TargetChoice, probing: Probing) -> list[ToolchainState]:
    """Return the states of the toolchains that the settings name, or of all.

    Where the settings name some, those that pins and own placements speak of are looked for too:
    what a run says of them depends on whether they are here. Some toolchains may not be ready, but
    never all of those for the target.
    """
    waited_for = {*settings.toolchains, *probing.waited_for}
    names = None
    if settings.toolchains:
        names = [name for name in all_names() if name in waited_for]

    while True:
        states = probe_all(
            names,
            on_child=probing.on_probe,
            ready_by=probing.ready_by,
            waited_for=waited_for,
            beside=probing.beside,
        )
        late = [state.name for state in states if state.late and state.name not in waited_for]
        if not late or any(state.available and state.serves(target.kind) for state in states):
            return list(states)
        waited_for.add(late[0])


def _check_target(states: Sequence[ToolchainState], target: TargetChoice) -> None:
    """Raise ``ToolchainError`` where something is missing that a toolchain needs for the target.

    A run would go on without it, and find out much later that some operators run nowhere.
    """
    for state in states:
        if state.available and state.reason and not state.serves(target.kind):
            raise ToolchainError(
                f"{state.title} does not run on {target.kind} here: {state.reason}"
            )


def _chosen_toolchains(
    by_name: Mapping[str, ToolchainState],
    settings: RunSettings,
    target: TargetChoice,
    faults: FaultTracker,
) -> tuple[list[Toolchain], list[Toolchain]]:
    """Return the toolchains that the settings name, or all that compile for the target.

    Returns:
        Those that run on the target, and those with instances on the host of a device.
    """
    serving = tuple(name for name, state in by_name.items() if state.serves(target.kind))
    names = settings.toolchains or serving
    on_device = target.kind != "cpu" and any(name in serving for name in names)
    on_target, on_host = list[Toolchain](), list[Toolchain]()
    for name in names:
        state = by_name[name]
        beside = on_device and state.available and state.serves("cpu")
        if beside:
            on_host.append(_loaded(name))
        if not state.serves(target.kind):
            if beside:
                continue
            raise UsageError(f"toolchain {name} does not compile for {target.kind}")
        # Without its device a toolchain still compiles, if it can and the user asks for it.
        compiles = bool(settings.toolchains) and target.device is None and target.kind != "cpu"
        if state.available or (compiles and state.builds):
            on_target.append(_loaded(name))
        elif settings.toolchains and name not in faults.left_out:
            install = f" ({state.install})" if state.install else ""
            raise ToolchainError(f"toolchain {name} is not available here: {state.reason}{install}")
    return on_target, on_host


def _loaded(name: str) -> Toolchain:
    """Return a toolchain, whose package is imported on first use."""
    with asking(name):
        return get(name)


def source_of(
    graph: DataflowGraph,
    toolchain: Toolchain,
    instance: ToolchainInstance,
    strict_nan: bool = False,
) -> CandidateSource:
    """Return a toolchain instance with its rules for a graph.

    Args:
        graph: The dataflow graph.
        toolchain: The toolchain, which is asked for its rules here.
        instance: One of its instances.
        strict_nan: Whether it is to take no operator in which it does not hand on NaN.

    Raises:
        ToolchainFault: The toolchain failed, took too long, or answered with nonsense.
    """
    name = toolchain.name

    def supports(index: OperatorNumber) -> str | None:
        reason = toolchain.supports(graph, index, instance)
        if reason is None and strict_nan and toolchain.swallows_nan(graph, index, instance):
            return f"{onnx_type(graph.nodes[index].op)}: it does not hand on NaN (--strict-nan)"
        return reason

    with asking(name):
        spec = toolchain.partition_spec(instance, graph)
        if not isinstance(spec, PartitionRule):
            raise ToolchainError(f"its partition spec is {spec!r:.40}")
        with asking(name, WORK_S):
            # Here, once for all, since greedy covers ask several toolchains in turn.
            for rule in spec.patterns():
                rule.matches(graph)
        return CandidateSource(
            instance=instance,
            spec=spec,
            asking=lambda: asking(name, WORK_S),
            supports=_asked_reason(name, supports),
            whole_model=toolchain.about.whole_model,
            lowers_to_tir=isinstance(toolchain, LowersToTir),
            takes_set=asked(name, lambda nodes: toolchain.takes_set(graph, instance, nodes)),
            formats=toolchain.formats(instance),
            device=instance.device,
        )


def _asked_reason(
    name: str, supports: Callable[[OperatorNumber], str | None]
) -> Callable[[OperatorNumber], str | None]:
    """Return the judgement of a toolchain as one line, or None where it can run the operator."""

    def ask(index: OperatorNumber) -> str | None:
        with asking(name):
            reason = supports(index)
            if reason is None:
                return None
            if not isinstance(reason, str):
                raise ToolchainError(
                    f"it says {reason!r:.40} about an operator: None, or why it does not take it"
                )
            return first_line(reason, "it gives no reason")[:MOST_CHARACTERS]

    return ask


def may_lose_nan(
    graph: DataflowGraph, instance: ToolchainInstance, numbers: Iterable[OperatorNumber]
) -> bool:
    """Tell whether operators, by their numbers, may make a number of NaN on an instance."""
    with asking(instance.toolchain):
        toolchain = get(instance.toolchain)
        return any(toolchain.swallows_nan(graph, number, instance) for number in numbers)


def nan_losses(graph: DataflowGraph, placement: Placement) -> tuple[NanLoss, ...]:
    """Return which ONNX nodes of a placement do not hand on NaN, by type and toolchain."""
    titles, owners = NodeTitles(graph.record.nodes), graph.record.node_of_operator
    losses: dict[tuple[str, str], set[int]] = {}
    for part in placement.partitions:
        instance = part.toolchain_instance()
        for number in part.nodes:
            if may_lose_nan(graph, instance, [number]):
                key = titles[number], part.toolchain
                losses.setdefault(key, set()).add(owners[number])
    return tuple(
        NanLoss(operator=operator, toolchain=toolchain, nodes=len(nodes))
        for (operator, toolchain), nodes in losses.items()
    )


def _instances(
    toolchain: Toolchain, settings: RunSettings, threads: int, target: TargetChoice
) -> tuple[ToolchainInstance, ...]:
    """Return a toolchain's instances for the target and the precision of a run."""
    goal = Target.cuda(target.architecture) if target.kind == "cuda" else Target(threads=threads)
    with asking(toolchain.name):
        return checked_instances(toolchain.name, toolchain.instances(goal, settings.precision))


def checked_instances(
    name: str, instances: tuple[ToolchainInstance, ...]
) -> tuple[ToolchainInstance, ...]:
    """Check a toolchain's instances, and return them.

    Raises:
        ToolchainError: They are no tuple of instances, alike, or another toolchain's.
    """
    if not isinstance(instances, tuple | list):
        raise ToolchainError(f"its instances are {instances!r:.40}")
    instances_checked = tuple(
        convert(msgspec.to_builtins(instance), ToolchainInstance) for instance in instances
    )
    if any(each.toolchain != name for each in instances_checked):
        raise ToolchainError("it has an instance of another toolchain")
    if len({each.id for each in instances_checked}) < len(instances_checked):
        raise ToolchainError("two of its instances have one name")
    return instances_checked


def _without_candidates(
    graph: DataflowGraph, sources: Sequence[CandidateSource], candidates: Sequence[Candidate]
) -> dict[str, dict[int, Refusal]]:
    """Return, by instance id, the operators that it has no candidate for, and why."""
    held: dict[str, set[int]] = {source.instance.id: set() for source in sources}
    for candidate in candidates:
        held[candidate.instance.id].update(candidate.nodes)
    refusals: dict[str, dict[int, Refusal]] = {}
    for source in sources:
        instance = source.instance
        title = get(instance.toolchain).about.title
        refusals[instance.id] = {
            number: msgspec.structs.replace(why_not(graph, source, number), toolchain=title)
            for number in graph.operators
            if number not in held[instance.id]
        }
    return refusals


def _key_context(states: Sequence[ToolchainState], target: TargetChoice) -> KeyContext:
    """Return what measurement keys are made with on this machine."""
    import tvm

    from collage_engine.lowering.virtual_machine import build_target

    present = [state for state in states if state.available]
    return KeyContext(
        tvm_version=tvm.__version__,
        target=str(build_target(target.architecture)),
        fingerprint=target.device.record().fingerprint if target.device else fingerprint(),
        host=fingerprint() if target.device else "",
        versions={state.name: state.version or "" for state in present},
        sources={state.name: source_hash(type(_loaded(state.name))) for state in present},
    )
