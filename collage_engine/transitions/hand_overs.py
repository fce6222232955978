"""Measures this machine's transition constants with real partitions (see ``machine.constants``).

A child process builds chains of one-operator partitions, as whole modules and alone, and times
them against each other. Kept in the store per device, toolchain versions and thread count.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collage_engine.bounds.heuristic import CALL
from collage_engine.machine.constants import (
    LONG,
    SHORT,
    measure_constants,
    pair_name,
)
from collage_engine.machine.pool import call_in_child
from collage_engine.machine.worker import WorkerError
from collage_engine.records.errors import CollageError, MeasureError
from collage_engine.records.graph import TensorType
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.versions import MEASURING_PROTOCOL
from collage_engine.store.keys import KeyContext
from collage_engine.store.store import Store
from collage_engine.timing.protocol import ProtocolSettings, TimedCall, time_interleaved

JOB = "collage_engine.transitions.hand_overs:run_job"
LIMIT_S = 300.0
"""Seconds for building and timing all chains; chosen."""

SHAPE = (1, 64, 28, 28)
"""Shape of the value that is handed on; chosen: 200 kB stay in a second-level cache, and
are enough work for every runtime to wake its threads."""

EVERYONE = ProtocolSettings(
    worse=float("inf"), hopeless=float("inf"), min_rounds=15, max_rounds=15, budget_s=10.0
)
"""Timing in which nothing is dropped: all of the times are needed. 15 rounds and 10 s a call are
chosen."""


@dataclass(frozen=True)
class HandoverRequest:
    """One instance per toolchain."""

    instances: tuple[ToolchainInstance, ...]
    settings: ProtocolSettings = field(default_factory=lambda: EVERYONE)


def transition_constants(
    instances: Sequence[ToolchainInstance],
    context: KeyContext,
    *,
    store: Store | None = None,
    env: Mapping[str, str] | None = None,
    cancel: threading.Event | None = None,
    on_measuring: Callable[[], None] = lambda: None,
    job: str = JOB,
) -> dict[str, float]:
    """Return what launches and hand-overs cost, from the store or measured now.

    Measured between toolchains, with the first instance of each; what holds for a toolchain is
    given for all of its instances. A toolchain that cannot run the chain has no pairs.

    Args:
        instances: of all toolchains.
        context: what measurements depend on here.
        store: where known costs are, and new ones are kept; None: they are measured.
        env: the child's variables.
        cancel: ends the child when it is set.
        on_measuring: called when they are not stored yet.
        job: the child's work; tests give another one.

    Returns:
        Microseconds of ``launch``, ``pair:<instance>:<instance>`` and ``call:<instance>`` (a call
        on a single number).

    Raises:
        MeasureError: they cannot be measured.
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
    if known is None:
        on_measuring()
        request = HandoverRequest(tuple(default.values()))
        try:
            known = call_in_child(job, request, timeout_s=LIMIT_S, cancel=cancel, env=env)
        except WorkerError as error:
            raise MeasureError(f"transition costs could not be measured: {error}") from error
        if store is not None:
            store.put_constant(name, known)
    return spread(known, instances)


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


def run_job(request: HandoverRequest) -> dict[str, float]:
    """Measure in this process; imports TVM and the toolchains."""
    bench = ChainBench(request)
    names = [instance.toolchain for instance in request.instances]
    return measure_constants(names, bench.time_alone, bench.time_chains) | bench.time_calls()


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

    def __init__(self, request: HandoverRequest) -> None:
        from collage_engine.model.importer import import_onnx

        self.request = request
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
            with compile_function(function) as compiled:
                return self._time([compiled.timer([self.input])])[0]
        except CollageError as error:
            raise KeyError(name) from error

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
                contextlib.suppress(CollageError),
                compile_function(function_of(model, instance, (1,), "call")) as compiled,
            ):
                found[CALL + name] = self._time([compiled.timer([value])])[0]
        return found

    def time_chains(self, chains: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], float]:
        """Return the microseconds of whole modules."""
        built = {}
        for chain in chains:
            try:
                built[chain] = self._build(chain)
            except CollageError:
                continue  # the toolchain has no such chain; its pairs stay unknown
        times = self._time(list(built.values()))
        return dict(zip(built, times, strict=True))

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

    def _time(self, timed: Sequence[TimedCall]) -> list[float]:
        timings = time_interleaved(
            timed,
            self.request.settings,
            interruptions=lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        )
        return [timing.median * 1e6 for timing in timings]
