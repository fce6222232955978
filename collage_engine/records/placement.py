"""Placements, baselines and runs, and what a runtime's profile says of its own layers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Literal

import msgspec

from collage_engine.records.candidate import UNKNOWN, Candidate, CandidateRecord, Cost
from collage_engine.records.pin import LimitVerdict, PinVerdict
from collage_engine.records.precision import Accuracy, RunTolerance
from collage_engine.records.settings import Objective
from collage_engine.records.shapes import ShapeRow, Sharing
from collage_engine.records.toolchain import ToolchainInstance, ToolchainState, TuneCounts
from collage_engine.support.typed import Count, Figure, Positive


class MemorySeen(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of the process that ran a placement, in bytes; None where they are not known."""

    peak_bytes: Count | None = None
    """The largest so far, while loading or running."""
    base_bytes: Count | None = None
    """Before the module was loaded: Python, TVM's runtime, the sample."""
    load_peak_bytes: Count | None = None
    """The largest while loading, the first run included."""
    run_peak_bytes: Count | None = None
    """The largest since then."""

    @property
    def running_bytes(self) -> int | None:
        """Return what a limit on memory counts: the peak while running, or else the peak so far."""
        return self.run_peak_bytes or self.peak_bytes


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that a placement takes, and the sizes of its files."""

    seen: MemorySeen
    weights_bytes: Count = 0
    """Of the model."""
    stored: dict[str, Count] = {}
    """Toolchain → bytes of weights its partitions were given."""
    repeated_bytes: Count = 0
    """Weights that the artifact holds once more because a second partition reads them, too."""
    artifact_bytes: Count | None = None
    """All files of the artifact."""
    library_bytes: Count = 0
    """Of them the runtime libraries."""
    place_peak_bytes: Count | None = None
    """The largest of all processes of the run together, which no file stands behind."""


class MachineState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Clocks and load, as far as the system reports them."""

    at: str
    """ISO 8601, UTC."""
    mhz: float | None = None
    """Clock of the processors that this program may use: their median."""
    governor: str = ""
    """Who chooses the clock (Linux's name, such as ``performance``); several, by commas."""
    busy: str | None = None
    """A sentence where other programs or guests used the processors; None: they did not, or the
    system does not tell."""


TIE_SHARE = 0.01
"""Share of a latency by which another one must differ to be better: within it the race calls
placements tied, and nobody is told of a drift of the baselines. Chosen, less than what equal
modules in different processes differ by."""
PROCESS_SHARE = 0.1
"""Share by which the time of the same module, or of a layer of it, may differ in another process,
where its memory happens to lie elsewhere. Measured: up to 10 % to 17 %, and few are so slow."""
BaselineKind = Literal["whole-model", "fuseops", "greedy", "user"]


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition is one candidate of a placement."""

    id: str
    """``p0``, ``p1``… in execution order."""
    candidate: str
    """Id of the candidate partition."""
    toolchain: str
    config: dict[str, str]
    nodes: tuple[int, ...]
    onnx_nodes: tuple[str, ...]
    estimated_us: Figure | None
    """What its candidate costs (within the model, where covers were looked into; else alone),
    without launch and transitions. Where the candidate of a baseline that won was never measured,
    what it took in the winner's profile."""
    in_place_us: Figure | None = None
    """Time inside the real run, where it was profiled."""
    takes: dict[int, str] = {}
    """Format of an input value (operator number of its producer); absent: plain."""
    gives: dict[int, str] = {}
    """Format of an output value; absent: plain."""
    precision: str = "float32"
    """The lowest that it rounds float32 values to inside."""
    max_rel_error: float | None = None
    """Isolated: on its own true inputs, against its own true outputs."""
    device: str = "cpu"
    architecture: str = ""
    """Of a cuda device: what is compiled for."""
    tuning: str = ""
    """Which table of tuned kernels it is lowered with (``Run.tables``)."""
    node_count: int = 0
    """ONNX nodes of which it consists; 0: nobody counted them."""

    @property
    def size(self) -> int:
        """Return the number of its ONNX nodes; of its operators where nobody counted."""
        return self.node_count or len(self.nodes)

    @property
    def instance(self) -> str:
        """Return the id of its toolchain instance: ``tvm[precision=bf16]``."""
        return self.toolchain_instance().id

    def toolchain_instance(self, threads: int = 1) -> ToolchainInstance:
        """Return its toolchain instance with so many threads."""
        return ToolchainInstance(
            toolchain=self.toolchain,
            config=tuple(sorted(self.config.items())),
            threads=threads,
            precision=self.precision,
            device=self.device,
            architecture=self.architecture,
            tuning=self.tuning,
        )


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is brought from one format to another between partitions, once."""

    node: int
    """Operator number of its producer."""
    source: str
    """Format it is made in."""
    target: str
    us: Figure | None = None
    """Estimated."""


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel outside every partition (a conversion, a copy) in the built module."""

    name: str
    calls: Count
    us: Figure | None


class NanLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of a placement that may make a number of NaN, which the standard hands on."""

    operator: str
    """The ONNX type of the nodes."""
    toolchain: str
    nodes: Count


class LayerTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a kernel, or a layer of a runtime, takes in a run of a placement."""

    name: str
    """What ran: a kernel, or a layer in its runtime's words."""
    us: Figure
    gap_us: Figure = 0.0
    """Microseconds that pass before it begins."""
    partition: int | None = None
    """The place of its partition in the placement; None: it belongs to none, as a conversion."""
    operators: tuple[int, ...] = ()
    """Those of the ONNX nodes that it computes, wholly or in part; empty: a runtime inserted it."""
    blocks: Count = 1
    """Equal blocks of the model of which it is the sum; more than one only in drawings."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """A cover of the graph, with what it should and does take."""

    partitions: tuple[Partition, ...]
    """In the order in which they run; none where the model has no operator."""
    estimated_us: Figure | None
    """Candidates, launches and transitions."""
    measured_us: Positive | None = None
    spread_us: tuple[Figure, Figure] | None = None
    """20th and 80th percentile of the end-to-end rounds."""
    additive_error_us: float | None = None
    """measured_us − estimated_us"""
    spin: bool = False
    conversions: tuple[Conversion, ...] = ()
    """In order of the values."""
    nan_losses: tuple[NanLoss, ...] = ()
    """Nodes that do not hand on NaN; known of what a run chose only."""
    layers: tuple[LayerTime, ...] = ()
    """Kernels and layers in the order in which they run: with what passes between them they take
    ``measured_us`` together. Empty: it was not profiled."""

    @property
    def identity(self) -> Hashable:
        """Return what two placements have in common that run the same operators alike."""
        return frozenset(
            (p.instance, p.nodes, frozenset(p.takes.items()), frozenset(p.gives.items()))
            for p in self.partitions
        )

    @property
    def candidates(self) -> frozenset[str]:
        """Return the ids of the candidates that its partitions run."""
        return frozenset(partition.candidate for partition in self.partitions)


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What a user could have without Collage."""

    name: str
    kind: BaselineKind
    measured_us: Positive | None = None
    spread_us: tuple[Figure, Figure] | None = None
    estimated_us: Figure | None = None
    reason: str | None = None
    """Why it has no time."""
    partitions: Count = 1
    order: tuple[str, ...] = ()
    """Greedy: toolchains in the user's order."""
    candidates: tuple[str, ...] = ()
    """Ids of the candidates that its partitions run, in the order in which they run; empty:
    they are not known."""
    reduced: bool = False
    """Whether a part of it computes in less than float32; the run's tolerance holds for it too."""
    max_rel_error: float | None = None
    """Of the whole model, the largest over the samples."""
    barred: str | None = None
    """Why it may not be exported, whatever its time: a deployment constraint, or pins."""
    names: tuple[str, ...] = ()
    """Other baselines that are the same cover: they were timed once."""
    layers: tuple[LayerTime, ...] = ()
    """As those of a placement; only whole models on one toolchain are profiled."""

    def is_of(self, placement: Placement) -> bool:
        """Tell whether it runs the same candidates as a placement, as far as they are known."""
        return bool(self.candidates) and frozenset(self.candidates) == placement.candidates


def noise_us(timed: Placement | Baseline) -> float:
    """Return by how many microseconds other latencies must differ from one to be told apart.

    It is half the distance of the percentiles between which its rounds lie, and at least the share
    within which the race calls two placements tied.
    """
    low, high = timed.spread_us or (0.0, 0.0)
    return max(TIE_SHARE * (timed.measured_us or timed.estimated_us or 0.0), (high - low) / 2)


class CandidateCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts say what became of the candidates of a run."""

    enumerated: Count = 0
    distinct: Count = 0
    measured: Count = 0
    from_store: Count = 0
    from_trials: Count = 0
    """Timed within a whole model before isolated measuring began, and not by themselves."""
    invalid: Count = 0
    skipped: Count = 0
    """Left unmeasured: the best cover consists of others, or the budget was spent."""
    unreached: Count = 0
    """Of the skipped: the run ended before its best cover was measured throughout, so these could
    have changed it."""


class Unmeasured(msgspec.Struct, frozen=True, kw_only=True):
    """What a run left out because its budget ended or the user stopped it."""

    candidates: Count
    """Distinct candidates that could matter and were not measured."""
    share: Figure
    """The same as a share of all distinct candidates."""
    contenders: Count = 0
    """Placements and baselines that were not timed end to end."""
    stages: tuple[str, ...] = ()
    """Stages that were left out or cut short, in order."""


class DeploymentRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one way of sharing the processors among instances gave."""

    run: str
    """Id of its run."""
    streams: Count
    """Instances at once."""
    threads: Count
    """Of each."""
    items_per_s: Figure | None
    toolchains: tuple[str, ...] = ()
    best_single: str = ""
    """The toolchain that is fastest alone, as many instances at once."""
    best_single_items_per_s: Figure | None = None


class Run(msgspec.Struct, kw_only=True):
    """One run of the pipeline: the document that ``collage place --json`` prints."""

    id: str
    name: str
    model: dict[str, Any]
    target: str
    threads: Count
    toolchains: list[ToolchainState]
    candidates: CandidateCounts = CandidateCounts()
    placement: Placement | None
    baselines: list[Baseline]
    winner: str
    """``collage``, or the name of the baseline that is exported instead."""
    pins: list[PinVerdict] = []
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    seconds: dict[str, Figure] = {}
    artifact: str | None = None
    started_at: str = ""
    note: str = ""
    settings: dict[str, Any] = {}
    lower_bound_us: Figure | None = None
    pins_us: float | None = None
    """What several pins cost together, in microseconds; None: not known."""
    device: str = ""
    memory: MemoryUse | None = None
    unscheduled: Count | None = None
    """Kernels of what is exported that run TVM's plain loops, since no rule could write them; None:
    it was not built by itself."""
    tuning: TuneCounts | None = None
    """What the tuning stage did; None: there was none."""
    tolerance: RunTolerance | None = None
    """How far outputs may be from the true ones, and why; None: nothing was compared."""
    samples: Count = 0
    """Sets of inputs on which outputs were compared with the true ones; 0: none were."""
    not_finite: dict[str, float] = {}
    """By output the share of its true values that compare nothing, since on every sample they are
    NaN or infinite (for a whole number: the floats that it is made of); 1: it was not checked."""
    machine: list[MachineState] = []
    """Clocks and load at the begin of the run and after its last measurement."""
    warnings: list[str] = []
    limits: list[LimitVerdict] = []
    """Deployment constraints and their prices."""
    costs: dict[str, Cost] = {}
    """Candidate id → cost used in this run (not printed by ``place --json``)."""
    rivals: list[Placement] = []
    """Runner-up covers, best first (not printed by ``place --json``)."""
    accuracy: Accuracy | None = None
    """What became of the promise on accuracy, where one was made."""
    tied: list[str] = []
    """``collage`` and baselines whose times cannot be told from those of what is exported: within 1
    % in their common rounds, or not told apart by a signed-rank test, and either within 3 % or with
    the 20th and 80th percentile of their ratios on either side of 1."""
    ended: Literal["finished", "budget", "stopped"] = "finished"
    """Why the run ended: every stage did its work, the budget was spent, or the user stopped it and
    kept the best placement so far."""
    unmeasured: Unmeasured | None = None
    """What was left out for want of time; None: nothing."""
    confirmation: Literal["full", "quick", "trial"] = "full"
    """How the placement was confirmed: timed in a fresh process after a race with all baselines
    (``full``) or with some of them (``quick``), or by the race alone, since the time had ended
    (``trial``)."""
    first_answer_s: Figure | None = None
    """Seconds from the run's begin to its first provisional placement; None: there was none."""
    measured_on: str = ""
    """Name of the machine of a farm that ran whole models and confirmed the placement; empty: the
    run was on no farm."""
    of_profile: bool = False
    """Whether it shows what a runtime says of its own layers: nothing was placed."""
    provisional: bool = False
    """Whether the run still goes on, and may find a better placement."""
    objective: Objective = "latency"
    """What the times of placement and baselines are of: single calls (their median), single calls
    (their 99th percentile), or the time of several instances together over all their calls."""
    streams: Count = 1
    """Instances that ran at once, for throughput."""
    deployments: list[DeploymentRow] = []
    """For throughput: the numbers of instances and threads that were tried."""
    shapes: list[ShapeRow] = []
    """Where several shapes were placed for one artifact: all of them, this run's among them."""
    threads_us: dict[int, Figure] = {}
    """What the fastest whole model took in common rounds, in µs by number of threads, where this
    number was the run's to find; empty: it was given, there is one core, or others used it."""
    sharing: Sharing | None = None
    """What the artifact for these shapes shares; None: there is none."""
    tables: dict[str, dict[str, Any]] = {}
    """Tables of tuned kernels that the placement is lowered with, by hash, so that it can be
    built again anywhere (not printed by ``place --json``)."""

    def timed(self, placement: Placement | Baseline) -> Placement | Baseline | None:
        """Return what the run timed that is a placement: its own, a runner-up or a baseline.

        All that a run timed had common rounds; times of different runs had none.
        """
        if isinstance(placement, Baseline):
            return placement if placement in self.baselines else None
        for own in filter(None, (self.placement, *self.rivals)):
            same = own.candidates == placement.candidates != frozenset()
            if own.measured_us is not None and (own is placement or same):
                return own
        return next((b for b in self.baselines if b.measured_us and b.is_of(placement)), None)

    def tells_apart(self, one: Placement | Baseline, other: Placement | Baseline) -> bool:
        """Tell whether the rounds of the run tell two of the placements that it timed apart.

        For what it exports the paired rounds of the race decide, which a busy machine slows alike.
        Of two others only how far their rounds lie apart is known.

        Args:
            one: What ``timed`` returned, or a baseline of the run.
            other: Such another one.
        """
        if other is self.placement:
            one, other = other, one
        if one is self.placement:
            if isinstance(other, Baseline):
                return other.name not in (*self.tied, self.winner)
            if self.winner != "collage" and other is self.best_found():
                return "collage" not in self.tied
        gap_us = abs((one.measured_us or 0.0) - (other.measured_us or 0.0))
        return gap_us > max(noise_us(one), noise_us(other))

    def best_found(self) -> Placement | None:
        """Return the best placement that the search found, whether or not the run exports it.

        None where the search found nothing else than what the baselines are, which are shown by
        themselves.
        """
        if self.of_profile:
            return None
        if self.winner == "collage":
            return self.placement
        shown = [frozenset(baseline.candidates) for baseline in self.baselines]
        if self.placement is not None:
            shown.append(self.placement.candidates)
        return next((rival for rival in self.rivals if rival.candidates not in shown), None)


def baseline_placement(
    baseline: Baseline, candidates: Mapping[str, CandidateRecord], operators: int
) -> Placement | None:
    """Make the placement of a baseline from the candidates of the document.

    Args:
        baseline: A baseline of a run.
        candidates: Candidate id → candidate.
        operators: How many operators the model has.

    Returns:
        The placement with the baseline's times. None where the baseline has no time, or where the
        document does not know what it runs.
    """
    if baseline.measured_us is None:
        return None
    chosen = [candidates.get(name) for name in baseline.candidates]
    partitions = [
        partition_of(index, c, c.cost if c.cost.usable else UNKNOWN)
        for index, c in enumerate(filter(None, chosen))
    ]
    held = sorted(node for part in partitions for node in part.nodes)
    if None in chosen or held != list(range(operators)):
        return None
    return Placement(
        partitions=tuple(partitions),
        estimated_us=baseline.estimated_us,
        measured_us=baseline.measured_us,
        spread_us=baseline.spread_us,
        layers=baseline.layers,
    )


def partition_of(index: int, candidate: Candidate, cost: Cost) -> Partition:
    """Return a candidate as the partition of this index, without the names of its nodes."""
    instance = candidate.instance
    return Partition(
        id=f"p{index}",
        candidate=candidate.id,
        toolchain=instance.toolchain,
        config=dict(instance.config),
        nodes=candidate.nodes,
        onnx_nodes=(),
        estimated_us=cost.us,
        takes=candidate.takes,
        gives=candidate.gives,
        precision=instance.precision,
        max_rel_error=cost.max_rel_error,
        device=instance.device,
        architecture=instance.architecture,
        tuning=instance.tuning,
    )


LEAST_RUNS, MOST_RUNS = 5, 50
"""Runs of a model that are profiled, at least and at most, ``LEAST_S`` seconds in all; chosen:
medians of them are steady, files stay small, and the command promises a minute."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer that a runtime executed."""

    name: str
    kind: str
    """What it does, in the runtime's words: ``Conv``, ``FullyConnected``, ``Reorder``."""
    us: Figure | None
    """Microseconds in one run; None: the file says nothing of times."""
    nodes: tuple[str, ...] = ()
    """Names of ONNX nodes, or of their outputs, that it computes as far as its name says; empty:
    the runtime inserted it."""
    absorbs: Literal["nothing", "after", "before"] = "nothing"
    """Which nodes without a layer of their own it may have been fused with: those that read what
    its nodes make, or those that make what they read. The latter in any case where it is called
    after an output."""
    kernel: str = ""
    """Which kernel ran it, where that is said."""
    fell_back: str = ""
    """What ran it instead of what the runtime would prefer; empty: nothing."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of a whole model, in the order in which they ran."""

    toolchain: str
    layers: tuple[Layer, ...]
    us: Figure | None = None
    """Microseconds of a whole run, where that is said."""
    warnings: tuple[str, ...] = ()
    """What in the file makes the runtime slow."""


class DiagnosedNode(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime made of some ONNX nodes, which it ran as one."""

    onnx_nodes: tuple[str, ...]
    state: Literal["ran", "fell back", "not seen"]
    """``not seen``: no layer names them; they were folded, cost nothing or were fused."""
    us: Figure | None
    device: str = ""
    """What they fell back to."""
    placed_on: tuple[str, ...] = ()
    """The toolchains that run them in the placement."""
    delta_us: float | None = None
    """What the placement takes for them less what the runtime took; None: there is no placement,
    it has no times, or one of its partitions holds other nodes, too."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime's profile by ONNX node, beside the placement of a run."""

    toolchain: str
    run: str
    """Id of the run that the session keeps of the profile."""
    layers_us: Figure | None
    """Sum of the layers."""
    measured_us: Figure | None
    """A whole run while it was profiled."""
    nodes: tuple[DiagnosedNode, ...]
    """The most expensive first."""
    inserted: tuple[Residual, ...]
    """Layers that name no ONNX node: the runtime's own conversions of layouts and types."""
    alone_us: Figure | None = None
    """The runtime on the whole model, timed in common rounds with the placement."""
    placement_us: Figure | None = None
    placement: str = ""
    """Id of the run whose placement it is compared with."""
    warnings: tuple[str, ...] = ()
    """The profile's."""
