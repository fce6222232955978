"""Times chains of one-operator partitions, and finds what handing a value on costs there.

A chain is a whole module of ReLUs in a row, each a partition of its own. Chains of different
lengths and toolchains are timed in the same rounds as single partitions, of which each one's
fastest sample counts: what else the machine does only adds time (Chen and Revels, "Robust
benchmarking in noisy environments", 2016). Before anything of a toolchain runs, it is noted
(``machine.faults``), so that the parent knows who ended this process, and ends who takes too long.

The cost of a cover is that of its candidates, timed alone, plus a launch for each, plus a pair
cost for each value that goes from one partition to another. Both are what a chain of partitions
takes beyond the sum of its parts:

* A chain of ``n`` partitions of toolchain *a* grows by ``alone(a) + launch + pair(a, a)`` with
  each. The launch is what the leanest toolchain has; the rest is its own.
* In a chain that alternates, every two partitions add ``alone(a) + alone(b) + 2 launch +
  pair(a, b) + pair(b, a)``. The two directions cannot be told apart and share it equally.

Differences of two chain lengths are used, so whatever a whole module costs once drops out. What is
subtracted must have been timed in the same rounds: the difference of two moments of a machine is
easily more than a transition.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from collage_engine.machine.cuda_runtime import CudaRuntime
from collage_engine.machine.faults import OWN_RISK
from collage_engine.records.format import LAUNCH, pair_name
from collage_engine.records.graph import TensorType
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import MeasureError, fault_reason
from collage_engine.timing.protocol import TimedCall, time_interleaved

if TYPE_CHECKING:
    from onnx import ModelProto

SHORT, LONG = 4, 24
"""Partitions of a short and of a long chain, whose times give the launch cost; even, so that
alternating chains are balanced; chosen."""


def wanted_chains(instances: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the chains to build for some instances: of each, and of each two in turns."""
    repeated = [*((name,) for name in instances), *combinations(instances, 2)]
    return [names * (n // len(names)) for names in repeated for n in (SHORT, LONG)]


def constants_from(
    alone: Mapping[str, float], chains: Mapping[tuple[str, ...], float]
) -> dict[str, float]:
    """Derive ``launch`` and ``pair:a:b``, in microseconds and never negative.

    Instances without times (a toolchain that could not take the chain's operator) get none.

    Args:
        alone: The µs of one partition by itself, as candidates are timed.
        chains: The µs of a whole module of partitions in a row, by their toolchain instances.
    """

    def step(*names: str) -> float | None:
        """Return what one more partition of a chain of these adds, in microseconds."""
        short, long = (chains.get(names * (n // len(names))) for n in (SHORT, LONG))
        return None if short is None or long is None else (long - short) / (LONG - SHORT)

    beyond = {name: us - alone[name] for name in alone if (us := step(name)) is not None}
    launch = max(0.0, min(beyond.values(), default=0.0))
    constants = {LAUNCH: launch}
    for name, us in beyond.items():
        constants[pair_name(name, name)] = max(0.0, us - launch)
    for a, b in combinations(beyond, 2):
        mixed = step(a, b)
        if mixed is not None:
            shared = mixed - (alone[a] + alone[b]) / 2 - launch
            constants[pair_name(a, b)] = constants[pair_name(b, a)] = max(0.0, shared)
    return constants


def measure_constants(
    instances: Sequence[str],
    time_chains: Callable[[Sequence[tuple[str, ...]]], Mapping[tuple[str, ...], float]],
) -> dict[str, float]:
    """Time what is needed and derive the constants.

    Args:
        instances: Ids of toolchain instances.
        time_chains: Builds whole modules of chains and times them in rounds, against each other and
            against single partitions, timed as candidates are, which are chains of one. What it
            cannot build or run is missing in its answer.
    """
    alone = time_chains([(name,) for name in instances])
    names = [name for (name,), us in alone.items() if us <= SLOWEST_US]
    times = time_chains([*((name,) for name in names), *wanted_chains(names)])
    return constants_from({name: times[name,] for name in names}, times)


_LOG = logging.getLogger(__name__)

SHAPE = (1, 16, 14, 14)
"""Shape of the value that is handed on: 12.5 kB stay in a first-level cache, and are too
little work for a runtime to wake its threads. Waking them takes 5 to 20 µs each time, differently
in every process, and is part of what a partition itself takes: with 200 kB at two threads the same
transition was measured as 0 to 13 µs, with 12.5 kB within 0.2 µs."""

SLOWEST_US = 20_000.0
"""Microseconds of one partition above which a toolchain's chains are not timed; chosen, some
hundred times what the slowest toolchain takes."""


@dataclass(frozen=True)
class TransitionRequest:
    """Asks the child for the transitions between toolchains, with one instance of each."""

    instances: tuple[ToolchainInstance, ...]
    step_s: float = math.inf
    """Seconds that one step may take: compiling a chain, or a sample of its time."""


def run_job(request: TransitionRequest) -> dict[str, float]:
    """Measure in this process, which imports TVM and the toolchains.

    Args:
        request: The toolchain instances.

    Returns:
        Microseconds by name; see ``timing.chain_bench``.
    """
    names = [instance.toolchain for instance in request.instances]
    bench = ChainBench(request)
    with bench.open:
        return measure_constants(names, bench.time_chains)


def chain_model(length: int) -> ModelProto:
    """Return an ONNX model of so many ReLUs in a row, over values of ``SHAPE`` in float32."""
    from onnx import parser

    value = f"float[{','.join(map(str, SHAPE))}]"
    nodes = " ".join(f"[r{i}] v{i + 1} = Relu(v{i})" for i in range(length))
    header = '<ir_version: 8, opset_import: ["": 13]>'
    return parser.parse_model(f"{header} chain ({value} v0) => ({value} v{length}) {{ {nodes} }}")


class ChainBench:
    """Builds and times chains over models that are imported once."""

    def __init__(self, request: TransitionRequest) -> None:
        from collage_engine.model.importer import import_onnx

        self.request = request
        self.instances = {i.toolchain: i for i in request.instances}
        self.models = {n: import_onnx(chain_model(n)) for n in (SHORT, LONG)}
        for length, model in self.models.items():
            if len(model.graph.operators) != length:
                raise MeasureError("the importer simplified the chain that was to be measured")
        self.input = self.models[SHORT].random_inputs(0)["v0"]
        self.built: dict[tuple[str, ...], TimedCall] = {}
        self.open = contextlib.ExitStack()

    def time_chains(self, chains: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], float]:
        """Return the microseconds of chains, all timed in the same rounds.

        Of a chain of two toolchains the later one is noted as at risk.

        Args:
            chains: The toolchain of each ReLU in a row; a chain of one is a partition by itself.

        Returns:
            Microseconds by chain, those of its fastest sample, without chains that cannot be built
            or run.
        """
        limit_s = self.request.step_s
        for chain in chains:
            try:
                with OWN_RISK.during(chain[-1], limit_s=limit_s):
                    if chain not in self.built:
                        timer = self._build(chain) if len(chain) > 1 else self._alone(chain[0])
                        timer(1)
                        self.built[chain] = timer
            except (Exception, SystemExit) as error:
                names = " and ".join(dict.fromkeys(chain))
                _LOG.info("transitions of %s are not measured: %s", names, fault_reason(error))
        timed = [chain for chain in chains if chain in self.built]
        timings = time_interleaved(
            [self.built[chain] for chain in timed],
            drops=False,
            about_to_run=lambda place: OWN_RISK.set(timed[place][-1], limit_s=limit_s),
        )
        return {
            chain: min(timing.samples) * 1e6 for chain, timing in zip(timed, timings, strict=True)
        }

    def _alone(self, name: str) -> TimedCall:
        """Compile a toolchain's partition of one ReLU, and return what times its calls."""
        from collage_engine.lowering.compile import Compiled
        from collage_engine.lowering.extract import function_of

        # From the middle of the chain: its input comes from another operator.
        function = function_of(self.models[SHORT], self.instances[name], (1,), "alone")
        return self.open.enter_context(Compiled(function)).timer([self.input])

    def _build(self, chain: tuple[str, ...]) -> TimedCall:
        """Build a chain as one module, each ReLU a partition, and return what times its calls."""
        from tvm import relax

        from collage_engine.lowering.compile import timer_of
        from collage_engine.lowering.executable import Executable
        from collage_engine.lowering.extract import function_of
        from collage_engine.lowering.rewrite import assemble
        from collage_engine.lowering.tensors import from_numpy
        from collage_engine.lowering.virtual_machine import device_of, use_threads

        model = self.models[len(chain)]
        functions = [
            function_of(model, self.instances[name], (number,), f"link{number}_{name}")
            for number, name in enumerate(chain)
        ]
        module = assemble(model, functions).module()
        use_threads(max(self.instances[name].threads for name in chain))
        first = self.instances[chain[0]]
        executable = Executable(module, first.architecture)
        device = device_of(first.device)
        value = from_numpy(self.input, TensorType(SHAPE, "float32"), device)
        cuda = CudaRuntime() if first.architecture else None
        return timer_of([relax.VirtualMachine(executable, device)], "main", [value], cuda)
