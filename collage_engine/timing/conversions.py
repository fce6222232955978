"""Bringing a value from one format to another is measured on this machine.

The kernels are those that a built placement calls. Each (type, from, to) is timed once, kept in
the store per TVM, device and thread count, and given to the search for every value of that type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from collage_engine.machine.worker import WorkerError, call_in_child
from collage_engine.records.format import conversion_constant, stored_type
from collage_engine.records.graph import TensorType
from collage_engine.records.versions import MEASURING_PROTOCOL
from collage_engine.store.keys import KeyContext, constant_name
from collage_engine.store.store import Store
from collage_engine.support.errors import MeasureError
from collage_engine.support.time_limits import WORK_S, Flag
from collage_engine.timing.chain_bench import NOTHING_DROPPED
from collage_engine.timing.protocol import TimedCall, time_interleaved
from collage_engine.toolchains.registry import format_converter
from collage_engine.toolchains.sources import source_hash

JOB = "collage_engine.timing.conversions:run_job"
"""The function that the child runs."""

Conversion = tuple[TensorType, str, str]
"""Logical type, from format, to format."""


@dataclass(frozen=True)
class ConversionRequest:
    """Conversions to be timed, on so many threads."""

    conversions: tuple[Conversion, ...]
    threads: int


def conversion_constants(
    conversions: Iterable[Conversion],
    threads: int,
    context: KeyContext,
    *,
    store: Store,
    env: Mapping[str, str] | None = None,
    cancel: Flag | None = None,
    on_measuring: Callable[[], None] = lambda: None,
    job: str = JOB,
) -> dict[str, float]:
    """Return what conversions cost, from the store or measured now.

    Args:
        conversions: logical type, from format, to format.
        threads: of the kernels.
        context: what measurements depend on here.
        store: where known costs are, and new ones are kept.
        env: the child's variables.
        cancel: ends the child when it is set.
        on_measuring: called when some are not stored yet.
        job: the child's work; tests give another one.

    Returns:
        Microseconds by ``records.format.conversion_constant``.

    Raises:
        MeasureError: they cannot be measured.
    """
    wanted = {conversion_constant(*each): each for each in conversions}
    about = [
        threads,
        source_hash(type(format_converter())),
        context.tvm_version,
        context.target,
        context.fingerprint,
        MEASURING_PROTOCOL,
    ]
    place = constant_name("conversions", about)
    known: dict[str, float] = dict(store.constant(place) or {})
    missing = tuple(each for name, each in wanted.items() if name not in known)
    if missing:
        on_measuring()
        request = ConversionRequest(missing, threads)
        try:
            known |= call_in_child(job, request, timeout_s=WORK_S, cancel=cancel, env=env)
        except WorkerError as error:
            raise MeasureError(f"conversion costs could not be measured: {error}") from error
        store.put_constant(place, known)
    return {name: known[name] for name in wanted}


# ---------------------------------------------------------------------- in the child


def run_job(request: ConversionRequest) -> dict[str, float]:
    """Build the kernels of all conversions as one module and time them in interleaved rounds.

    Args:
        request: The conversions, and what they run on.

    Returns:
        Microseconds by ``records.format.conversion_constant``.
    """
    import tvm

    from collage_engine.kernels.stack_buffers import PIPELINE
    from collage_engine.lowering.virtual_machine import build_target, use_threads

    writer, functions = format_converter(), dict[str, Any]()
    for number, each in enumerate(request.conversions):
        symbol = f"conversion{number}"
        kernel = writer.conversion(*each, request.threads)
        functions[symbol] = kernel.with_attr("global_symbol", symbol)
    module = tvm.tirx.build(tvm.IRModule(functions), build_target(), PIPELINE)
    use_threads(request.threads)
    timed = [
        _timed_call(module, symbol, each)
        for symbol, each in zip(functions, request.conversions, strict=True)
    ]
    timings = time_interleaved(timed, NOTHING_DROPPED)
    return {
        conversion_constant(*each): timing.median * 1e6
        for each, timing in zip(request.conversions, timings, strict=True)
    }


def _timed_call(module: Any, symbol: str, conversion: Conversion) -> TimedCall:
    """Return what times calls of a conversion."""
    import tvm

    from collage_engine.lowering.tensors import empty

    kind, source, target = conversion
    arguments = [empty(stored_type(kind, name)) for name in (source, target)]
    for tensor in arguments:
        tensor.copyfrom(tensor.numpy() * 0)  # pages of its own, and no numbers that are slow
    evaluators: dict[int, Any] = {}

    def time(calls: int) -> float:
        if calls not in evaluators:
            evaluators[calls] = module.time_evaluator(symbol, tvm.cpu(), number=calls, repeat=1)
        return float(evaluators[calls](*arguments).results[0]) * calls

    return time
