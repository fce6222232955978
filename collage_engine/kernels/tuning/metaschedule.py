"""Tunes one kernel for an NVIDIA device by MetaSchedule's evolutionary search.

Kernels are built, checked against their unscheduled self and timed by a bench of ours.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from collage_engine.records.errors import ToolchainError
from collage_engine.records.tuning import TuneRecord

_LOG = logging.getLogger(__name__)

POPULATION = 64
"""Variants of one generation of the evolutionary search. Chosen: small, since its time is a turn
of seconds."""
GENERATIONS = 2
"""Generations of the evolutionary search between two batches. Chosen: more would take the time in
which variants are timed."""
MOST_TRIALS = 256
"""Variants that are timed at most. Chosen: a search that found nothing until then is over."""


def saved(function: Any) -> str:
    """Returns a PrimFunc as text that ``loaded`` reads again in another process."""
    import tvm

    return str(tvm.ir.save_json(function))


def loaded(text: str) -> Any:
    """Returns the PrimFunc of a text that ``saved`` wrote."""
    import tvm

    return tvm.ir.load_json(text)


def load_intrinsics() -> float:
    """Imports TVM's tensor intrinsics, which every ``TuneContext`` does; returns its seconds.

    Some hundred kernels are parsed then, each of which asks for the stack with the source lines
    of all its frames and reads none of them: 36 seconds of processor time, 10 without the lines.
    """
    import functools
    import inspect

    begun = time.monotonic()
    whole = inspect.stack
    inspect.stack = functools.partial(whole, 0)
    try:
        import tvm.s_tir.tensor_intrin  # noqa: F401 - importing it registers the intrinsics
    finally:
        inspect.stack = whole
    return time.monotonic() - begun


def module_of(function: Any) -> Any:
    """Returns the kernel alone, as MetaSchedule takes it."""
    import tvm

    bare = function
    for name in ("op_pattern", "global_symbol"):
        if bare.attrs and name in bare.attrs:
            bare = bare.without_attr(name)
    return tvm.IRModule({"main": bare.with_attr({"global_symbol": "main", "tirx.noalias": True})})


def by_trace(function: Any, trace: Any) -> Any:
    """Returns the kernel as a MetaSchedule trace schedules it.

    Raises:
        ToolchainError: The trace does not fit the function.
    """
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    schedule = Schedule(module_of(function))
    try:
        Trace.apply_json_to_schedule(trace, schedule)
    except Exception as error:
        raise ToolchainError(f"a stored MetaSchedule trace does not fit: {error}") from error
    return schedule.mod["main"].without_attr("global_symbol")


def plain_json(value: Any) -> Any:
    """Return TVM's containers and numbers as JSON values."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "items"):
        return {str(k): plain_json(v) for k, v in value.items()}
    if hasattr(value, "__iter__"):
        return [plain_json(v) for v in value]
    number = value.value
    return float(number) if type(value).__name__ == "FloatImm" else int(number)


class Bench(Protocol):
    """The protocol of a bench that builds, checks and times MetaSchedule's kernels."""

    @property
    def default_us(self) -> float:
        """Returns the microseconds of what the toolchain would do without a trace."""
        ...

    def measure(
        self, kernels: Sequence[Any], about_to_try: Callable[[int], None]
    ) -> list[tuple[float, str | None]]:
        """Returns the microseconds of each, infinite with the reason where it is of no use."""
        ...


def evolve(
    function: Any,
    target: Any,
    space: Any,
    threads: int,
    batch: int,
    bench: Bench,
    known: TuneRecord,
    deadline: float,
    about_to_try: Callable[[str], None],
    better: Callable[[TuneRecord], None],
) -> TuneRecord:
    """Searches a space of schedules of a function by MetaSchedule's evolutionary search.

    It ends at the deadline; a batch in hand may go beyond it.

    Args:
        function: The PrimFunc that is to be scheduled.
        target: The ``tvm.target.Target`` that it is scheduled for.
        space: A space generator of MetaSchedule, or the name of one.
        threads: Threads that the search itself may use.
        batch: Variants that are built and timed together.
        bench: Builds, checks and times variants.
        known: What earlier searches found.
        deadline: When to end, on ``time.monotonic``'s clock, in seconds.
        about_to_try: It is told the name of what is tried next.
        better: It is told the record whenever something faster is found.

    Returns:
        The best trace found, as a record.
    """
    from tvm.s_tir import meta_schedule as ms

    begun = time.monotonic()
    module = module_of(function)
    best = dict(known.choice)
    default_us = best_us = bench.default_us
    if best:
        ((us, _),) = bench.measure([by_trace(function, best["trace"])], lambda _: None)
        best_us = min(us, default_us)
    context = ms.TuneContext(
        mod=module,
        target=target,
        space_generator=space,
        search_strategy=ms.search_strategy.EvolutionarySearch(
            population_size=POPULATION,
            genetic_num_iters=GENERATIONS,
            init_min_unmeasured=batch,
        ),
        task_name="main",
        num_threads=threads,
    )
    database = ms.database.MemoryDatabase()
    workload = database.commit_workload(module)
    model = _cost_model(ms)
    context.pre_tuning(
        MOST_TRIALS,
        batch,
        design_spaces=context.generate_design_space(),
        database=database,
        cost_model=model,
    )
    tried, failed = list(known.tried), list(known.failed)

    def record(complete: bool) -> TuneRecord:
        return msgspec.structs.replace(
            known,
            choice=best,
            default_us=default_us,
            tuned_us=best_us,
            tried=tuple(tried),
            failed=tuple(failed),
            complete=complete,
            seconds=known.seconds + time.monotonic() - begun,
        )

    complete = False
    while time.monotonic() < deadline:
        about_to_try("")  # nothing runs while schedules are drawn, nor while kernels are compiled
        candidates = context.generate_measure_candidates()
        if not candidates:
            complete = True
            break
        first = len(tried) + len(failed) + 1
        about_to_try("")
        measured = bench.measure(
            [c.sch.mod["main"] for c in candidates],
            lambda place, first=first: about_to_try(f"trial {first + place}"),  # type: ignore[misc]
        )
        results = []
        for place, (candidate, (us, problem)) in enumerate(zip(candidates, measured, strict=True)):
            (failed if problem else tried).append(f"trial {first + place}")
            results.append(ms.runner.RunnerResult(None if problem else [us * 1e-6], problem))
            if problem is None:
                database.commit_tuning_record(
                    ms.database.TuningRecord(
                        candidate.sch.trace, workload, [us * 1e-6], target, candidate.args_info
                    )
                )
            if us < best_us:
                trace = json.loads(json.dumps(plain_json(candidate.sch.trace.as_json())))
                best_us, best = us, {"trace": trace}
                better(record(False))
        context.notify_runner_results(candidates, results)
        model.update(context, candidates, results)
    context.post_tuning()
    return record(complete)


def _cost_model(ms: Any) -> Any:
    """Returns boosted trees where xgboost is installed, else None, which draws at random."""
    try:
        import xgboost  # noqa: F401 - only whether it is here matters

        return ms.cost_model.XGBModel(num_warmup_samples=16)
    except ImportError:
        return ms.cost_model.RandomModel()
    except Exception:
        _LOG.warning("XGBoost cannot be used; the search draws at random", exc_info=True)
        return ms.cost_model.RandomModel()
