"""Measures this machine's transition constants with real partitions (see ``machine.constants``).

A child process builds chains of one-operator partitions, as whole modules and alone, and times
them against each other. Kept in the store per device, toolchain versions and thread count.

A toolchain may crash the child, hang, take its memory or be far too slow. Before anything of a
toolchain runs, the child notes it in a marker (``timing.messages``): when the child ends early, the
toolchain at risk is left out, and the others are measured again in a fresh child.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import resource
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from collage_engine.bounds.heuristic import CALL
from collage_engine.machine.cgroups import memory_bytes
from collage_engine.machine.constants import (
    LONG,
    SHORT,
    measure_constants,
    pair_name,
)
from collage_engine.machine.worker import Worker, WorkerCrashed, WorkerError, WorkerTimeout
from collage_engine.records.errors import CollageError, MeasureError
from collage_engine.records.flag import Flag
from collage_engine.records.graph import TensorType
from collage_engine.records.reasons import short_reason
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.versions import MEASURING_PROTOCOL
from collage_engine.store.keys import KeyContext
from collage_engine.store.store import Store
from collage_engine.timing.child import MEMORY_SHARE
from collage_engine.timing.messages import Marker, Phase
from collage_engine.timing.protocol import ProtocolSettings, TimedCall, time_interleaved

JOB = "collage_engine.transitions.hand_overs:run_job"
LIMIT_S = 300.0
"""Seconds for building and timing all chains; chosen."""

LEFT_OUT = ":left out"
"""End of the name, in the store, of what is kept beside constants: toolchain → why it has none."""

WAITED = ":waited"
"""End of the name of what is kept beside it: how many seconds a step could take then."""
NO_ANSWER = "gave no answer"
"""How the reason begins of a toolchain that a longer wait may tell more of."""

SHAPE = (1, 64, 28, 28)
"""Shape of the value that is handed on; chosen: 200 kB stay in a second-level cache, and
are enough work for every runtime to wake its threads."""

EVERYONE = ProtocolSettings(
    worse=float("inf"), hopeless=float("inf"), min_rounds=15, max_rounds=15, budget_s=10.0
)
"""Timing in which nothing is dropped: all of the times are needed. 15 rounds and 10 s a call are
chosen."""


STEP_S = 10.0, 30.0
"""Least and most seconds that one step (compiling a chain, a sample of its time) may take before
the child is ended; between them the run's measuring budget counts. Chosen: a step takes a second or
two on a busy machine."""
SLOWEST_US = 20_000.0
"""Microseconds of one partition above which a toolchain's chains are not timed; chosen, some
hundred times what the slowest toolchain takes."""
PAIRS = 2
"""Pairs of a toolchain whose chains end the child before all of its chains are left out; chosen."""
SIGN_OF_LIFE_S = 1.0
"""Seconds after which a child that is timing tells its parent so; chosen."""

Pair = tuple[str, str]
"""Two toolchains in a chain; twice the same: one by itself."""


@dataclass(frozen=True)
class HandoverRequest:
    """One instance per toolchain."""

    instances: tuple[ToolchainInstance, ...]
    settings: ProtocolSettings = field(default_factory=lambda: EVERYONE)
    marker_path: str = ""
    """Where the pair at risk is noted; empty: nowhere."""
    without: tuple[Pair, ...] = ()
    """Pairs that are left out."""

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Return all pairs, by the places that the marker holds."""
        names = [instance.toolchain for instance in self.instances]
        return tuple((a, b) for a in names for b in names)


@dataclass(frozen=True)
class LeftOut:
    """A message of the child: a toolchain is left out, for this reason."""

    toolchain: str
    reason: str


def transition_constants(
    instances: Sequence[ToolchainInstance],
    context: KeyContext,
    *,
    store: Store | None = None,
    env: Mapping[str, str] | None = None,
    cancel: Flag | None = None,
    on_measuring: Callable[[], None] = lambda: None,
    on_left_out: Callable[[str], None] = lambda text: None,
    step_s: float = STEP_S[1],
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
        step_s: seconds that one step of a toolchain may take; at least those of ``STEP_S``.
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
        "with calls",
        parts,
        context.tvm_version,
        context.target,
        context.fingerprint,
        MEASURING_PROTOCOL,
    ]
    name = "transitions:" + hashlib.sha256(json.dumps(about).encode()).hexdigest()
    known = store.constant(name) if store is not None else None
    left_out: dict[str, str] = {}
    step_s = min(max(step_s, STEP_S[0]), STEP_S[1])
    if known is not None and store is not None:
        left_out = store.constant(name + LEFT_OUT) or {}
        waited_s = store.constant(name + WAITED) or step_s
        if step_s > waited_s and any(why.startswith(NO_ANSWER) for why in left_out.values()):
            known = None  # this run can wait longer
    if known is None:
        on_measuring()
        request = HandoverRequest(tuple(default.values()))
        try:
            known, left_out = _Measurement(request, job, env, cancel, step_s).run()
        except WorkerError as error:
            on_left_out(
                f"transition costs could not be measured: {error}; in this run they are not known"
            )
            return {}
        if store is not None:
            store.put_constant(name, known)
            store.put_constant(name + LEFT_OUT, left_out)
            store.put_constant(name + WAITED, step_s)
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

    def run(self) -> tuple[dict[str, float], dict[str, str]]:
        """Return the constants of those that can be measured, and why the others cannot.

        Raises:
            WorkerError: the child ended early, and no toolchain was at risk; or the time is over.
            Cancelled: the user stopped it.
        """
        deadline = time.monotonic() + LIMIT_S
        limit = int(memory_bytes() * MEMORY_SHARE)
        with (
            tempfile.TemporaryDirectory(prefix="collage-transitions-") as folder,
            Worker(
                self.job, env=self.env, memory_limit_bytes=limit, name="collage-transitions"
            ) as child,
        ):
            marker = Marker(Path(folder) / "marker", create=True)
            self.request = replace(self.request, marker_path=str(marker.path))
            try:
                while self.request.instances:
                    marker.clear()
                    try:
                        found: dict[str, float] = child.call(
                            self.request,
                            timeout_s=max(0.0, deadline - time.monotonic()),
                            cancel=self.cancel,
                            on_message=self.heard,
                            silence_s=self.step_s,
                        )
                        return found, self.left_out
                    except (WorkerCrashed, WorkerTimeout) as error:
                        place, _ = marker.get()
                        over = time.monotonic() >= deadline
                        if over or not 0 <= place < len(self.request.pairs):
                            raise
                        self.leave_out(self.request.pairs[place], error)
            finally:
                marker.close()
        return {}, self.left_out

    def heard(self, message: object) -> None:
        """Take a message of the child."""
        if isinstance(message, LeftOut):
            self.left_out[message.toolchain] = message.reason

    def leave_out(self, pair: Pair, error: WorkerCrashed | WorkerTimeout) -> None:
        """Have the next child measure without the pair at risk, or without a whole toolchain."""
        how = f"crashed: {error.reason}"
        if isinstance(error, WorkerTimeout):
            how = f"{NO_ANSWER} within {error.seconds:g} s"
        without = (*self.request.without, pair)
        counts = Counter(name for each in without for name in set(each))
        culprits = {name for name in pair if pair[0] == pair[1] or counts[name] >= PAIRS}
        for name in culprits:
            self.left_out[name] = how
        self.request = replace(
            self.request,
            instances=tuple(i for i in self.request.instances if i.toolchain not in self.left_out),
            without=without,
        )


def spread(
    constants: Mapping[str, float], instances: Sequence[ToolchainInstance]
) -> dict[str, float]:
    """Return the constants between toolchains as constants between their instances."""
    found = {name: us for name, us in constants.items() if not name.startswith(("pair:", CALL))}
    for a in instances:
        if CALL + a.toolchain in constants:
            found[CALL + a.id] = constants[CALL + a.toolchain]
    for a in instances:
        for b in instances:
            us = constants.get(pair_name(a.toolchain, b.toolchain))
            if us is not None:
                found[pair_name(a.id, b.id)] = us
    return found


# ---------------------------------------------------------------------- in the child


def run_job(
    request: HandoverRequest, send: Callable[[object], None] = lambda message: None
) -> dict[str, float]:
    """Measure in this process; imports TVM and the toolchains."""
    with _signs_of_life(send):
        bench = ChainBench(request, send)
    names = [instance.toolchain for instance in request.instances]
    return measure_constants(names, bench.time_alone, bench.time_chains) | bench.time_calls()


@contextlib.contextmanager
def _signs_of_life(send: Callable[[object], None]) -> Iterator[None]:
    """Tell the parent every second during a block that this process works: TVM loads slowly."""
    done = threading.Event()

    def tell() -> None:
        while not done.wait(SIGN_OF_LIFE_S):
            send(None)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def chain_model(length: int, shape: tuple[int, ...] = SHAPE) -> Any:
    """Return an ONNX model of as many ReLUs in a row."""
    from onnx import TensorProto, helper

    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], f"r{i}") for i in range(length)]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"v{length}", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    return model


class ChainBench:
    """Chains over models that are imported once."""

    def __init__(
        self, request: HandoverRequest, send: Callable[[object], None] = lambda message: None
    ) -> None:
        from collage_engine.model.importer import import_onnx

        self.request = request
        self.send = send
        self.marker = Marker(request.marker_path) if request.marker_path else None
        self.pairs = request.pairs
        self.last: Pair = ("", "")
        """The pair that was at risk last."""
        self.told_s = 0.0
        self.instances = {i.toolchain: i for i in request.instances}
        self.models = {n: import_onnx(chain_model(n)) for n in (SHORT, LONG)}
        for length, model in self.models.items():
            if len(model.graph.operators) != length:
                raise MeasureError("the importer simplified the chain that was to be measured")
        self.input = self.models[SHORT].random_inputs(0)["v0"]

    def time_alone(self, name: str) -> float:
        """Return the microseconds of one partition, compiled and timed as candidates are."""
        from collage_engine.lowering.compile import compile_function
        from collage_engine.lowering.extract import function_of

        # From the middle of the chain: its input comes from another operator.
        function = function_of(self.models[SHORT], self.instances[name], (1,), "alone")
        try:
            with self._at_risk(name, name), compile_function(function) as compiled:
                us = self._time([compiled.timer([self.input])], [(name, name)])[0]
        except CollageError as error:
            raise KeyError(name) from error
        except (Exception, SystemExit) as error:
            self._leave_out(name, f"failed: {short_reason(error, with_type=True)}")
            raise KeyError(name) from error
        if us > SLOWEST_US:
            self._leave_out(name, f"took {us / 1000:.0f} ms for a call of some microseconds")
            raise KeyError(name)
        return us

    def _leave_out(self, name: str, reason: str) -> None:
        self.instances.pop(name)
        self.send(LeftOut(name, reason))

    @contextlib.contextmanager
    def _at_risk(self, *chain: str) -> Iterator[None]:
        """Note during a block that the toolchains of a chain, one or two, run."""
        self._note(chain[0], chain[-1])
        try:
            yield
        finally:
            if self.marker is not None:
                self.marker.clear()

    def _note(self, first: str, last: str) -> None:
        self.last = (first, last)
        if self.marker is not None:
            self.marker.set(self.pairs.index((first, last)), Phase.TIMED)
        if time.monotonic() - self.told_s > SIGN_OF_LIFE_S:
            self.told_s = time.monotonic()
            self.send(None)

    def time_calls(self) -> dict[str, float]:
        """Microseconds of a call on a single number: what every call of a toolchain takes."""
        from collage_engine.lowering.compile import compile_function
        from collage_engine.lowering.extract import function_of
        from collage_engine.model.importer import import_onnx

        model = import_onnx(chain_model(SHORT, (1,)))
        value = model.random_inputs(0)["v0"]
        found = {}
        for name, instance in self.instances.items():
            with (
                contextlib.suppress(Exception, SystemExit),
                self._at_risk(name, name),
                compile_function(function_of(model, instance, (1,), "call")) as compiled,
            ):
                found[CALL + name] = self._time([compiled.timer([value])], [(name, name)])[0]
        return found

    def time_chains(self, chains: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], float]:
        """Return the microseconds of whole modules."""
        built = {}
        for chain in chains:
            if (chain[0], chain[-1]) in self.request.without:
                continue
            try:
                with self._at_risk(chain[0], chain[-1]):
                    built[chain] = self._build(chain)
            except (Exception, SystemExit):
                continue  # the toolchain has no such chain; its pairs stay unknown
        while True:
            try:
                times = self._time(list(built.values()), [(c[0], c[-1]) for c in built])
                return dict(zip(built, times, strict=True))
            except (Exception, SystemExit):
                # The pair at risk stays unknown; the others are timed again.
                failed = [chain for chain in built if (chain[0], chain[-1]) == self.last]
                if not failed:
                    raise
                for chain in failed:
                    built.pop(chain)

    def _build(self, chain: tuple[str, ...]) -> TimedCall:
        import tvm
        from tvm import relax

        from collage_engine.lowering.device_build import build_module
        from collage_engine.lowering.extract import function_of
        from collage_engine.lowering.rewrite import whole_module
        from collage_engine.lowering.target import device_of, use_threads

        model = self.models[len(chain)]
        functions = [
            function_of(model, self.instances[name], (place,), f"link{place}_{name}")
            for place, name in enumerate(chain)
        ]
        module = whole_module(model, functions)
        use_threads(max(self.instances[name].threads for name in chain))
        first = self.instances[chain[0]]
        executable = build_module(module, first.architecture)
        if first.architecture:
            from collage_engine.lowering.compile_cuda import device_timer
            from collage_engine.lowering.tensors import from_numpy
            from collage_engine.machine.cuda_runtime import CudaRuntime

            device = device_of(first.device)
            main = relax.VirtualMachine(executable, device)["main"]
            value = from_numpy(self.input, TensorType(SHAPE, "float32"), device)
            return device_timer([lambda: main(value)], CudaRuntime())
        vm = relax.VirtualMachine(executable, tvm.cpu())
        vm.save_function(
            "main", "collage_timed", tvm.runtime.tensor(self.input), include_return=False
        )
        vm["collage_timed"]()
        evaluators: dict[int, Callable[[], Any]] = {}

        def time(calls: int) -> float:
            if calls not in evaluators:
                evaluators[calls] = vm.time_evaluator("collage_timed", tvm.cpu(), number=calls)
            return float(evaluators[calls]().results[0]) * calls

        return time

    def _time(self, timed: Sequence[TimedCall], pairs: Sequence[Pair]) -> list[float]:
        timings = time_interleaved(
            timed,
            self.request.settings,
            about_to_run=lambda place: self._note(*pairs[place]),
            interruptions=lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        )
        return [timing.median * 1e6 for timing in timings]
