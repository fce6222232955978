"""MetaSchedule on one kernel: for loops that none of our schedules understands.

Its space of schedules and its evolutionary search are used as they are; kernels are built, checked
against their unscheduled self and timed here, in the process that searches (the parent ends it when
it crashes or hangs), which takes a tenth of the time of its own builder's and runner's processes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.tuning import TuneRecord, TuneTask

BATCH = 8
POPULATION = 64
GENERATIONS = 2
MOST_TRIALS = 256
ROUNDS = 3
TOLERANCE = 1e-4


def saved(function: Any) -> str:
    """A PrimFunc as text that ``loaded`` reads again in another process."""
    import tvm

    return str(tvm.ir.save_json(function))


def loaded(text: str) -> Any:
    import tvm

    return tvm.ir.load_json(text)


def load_intrinsics() -> float:
    """Import TVM's tensor intrinsics, which every ``TuneContext`` does; seconds it took.

    Some hundred kernels are parsed then, each of which asks for the stack with the source lines
    of all its frames and reads none of them: 36 seconds of processor time, 10 without the lines.
    """
    import functools
    import inspect

    begun = time.monotonic()
    whole = inspect.stack
    inspect.stack = functools.partial(whole, 0)
    try:
        import tvm.s_tir.tensor_intrin  # noqa: F401
    finally:
        inspect.stack = whole
    return time.monotonic() - begun


def module_of(function: Any) -> Any:
    """The kernel alone, as MetaSchedule takes it."""
    import tvm

    bare = function
    for name in ("op_pattern", "global_symbol"):
        if bare.attrs and name in bare.attrs:
            bare = bare.without_attr(name)
    return tvm.IRModule({"main": bare.with_attr({"global_symbol": "main", "tirx.noalias": True})})


def by_trace(function: Any, trace: Any) -> Any:
    """The kernel as a trace schedules it. ``ToolchainError`` when the trace does not fit."""
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    schedule = Schedule(module_of(function))
    try:
        Trace.apply_json_to_schedule(trace, schedule)
    except Exception as error:
        raise ToolchainError(f"a stored MetaSchedule trace does not fit: {error}") from error
    return schedule.mod["main"].without_attr("global_symbol")


def plain_json(value: Any) -> Any:
    """TVM's containers and numbers as JSON values."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "items"):
        return {str(k): plain_json(v) for k, v in value.items()}
    if hasattr(value, "__iter__"):
        return [plain_json(v) for v in value]
    number = value.value
    return float(number) if type(value).__name__ == "FloatImm" else int(number)


def search(
    task: TuneTask,
    instance: ToolchainInstance,
    known: TuneRecord,
    deadline: float,
    about_to_try: Callable[[str], None],
    better: Callable[[TuneRecord], None],
) -> TuneRecord:
    """The best trace found before the deadline; a batch in hand may go beyond it."""
    import numpy as np
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from collage_engine.toolchains.tvm.target import cpu_target
    from collage_engine.toolchains.tvm.verify import build, difference, random_arguments

    # Once a process, and no part of the search.
    deadline += load_intrinsics()
    begun = time.monotonic()
    clock = time.process_time if instance.threads == 1 else time.perf_counter
    function = loaded(task.description["function"])
    module = module_of(function)
    about_to_try("")
    arguments = random_arguments(function, 0)

    def run(kernel: Any) -> tuple[list[Any], float]:
        tensors = [tvm.runtime.tensor(a) for a in arguments]
        call = build(kernel)["kernel"]
        call(*tensors)
        times = []
        for _ in range(ROUNDS):
            start = clock()
            call(*tensors)
            times.append(clock() - start)
        return tensors, min(times) * 1e6

    truth, default_us = run(function)
    outputs = [i for i, (a, t) in enumerate(zip(arguments, truth, strict=True))
               if not np.array_equal(a, t.numpy())]  # fmt: skip
    best_us, best = default_us, dict(known.choice)
    if best:
        best_us = run(by_trace(function, best["trace"]))[1]

    target = tvm.target.Target(cpu_target(instance.threads))
    context = ms.TuneContext(
        mod=module, target=target, space_generator="post-order-apply",
        search_strategy=ms.search_strategy.EvolutionarySearch(
            population_size=POPULATION, genetic_num_iters=GENERATIONS, init_min_unmeasured=BATCH,
        ),
        task_name="main", num_threads=instance.threads,
    )  # fmt: skip
    database = ms.database.MemoryDatabase()
    workload = database.commit_workload(module)
    model = _cost_model(ms)
    context.pre_tuning(
        MOST_TRIALS, BATCH, design_spaces=context.generate_design_space(),
        database=database, cost_model=model,
    )  # fmt: skip
    tried, failed = list(known.tried), list(known.failed)

    def record(complete: bool) -> TuneRecord:
        return msgspec.structs.replace(
            known, choice=best, default_us=default_us, tuned_us=best_us, tried=tuple(tried),
            failed=tuple(failed), complete=complete,
            seconds=known.seconds + time.monotonic() - begun,
        )  # fmt: skip

    complete = False
    while time.monotonic() < deadline:
        candidates = context.generate_measure_candidates()
        if not candidates:
            complete = True
            break
        results = []
        for candidate in candidates:
            name = f"trial {len(tried) + len(failed) + 1}"
            about_to_try(name)
            us, problem = math.inf, None
            try:
                got, us = run(candidate.sch.mod["main"])
                wrong = max(difference(truth[i].numpy(), got[i].numpy()) for i in outputs)
                if wrong > TOLERANCE:
                    us, problem = math.inf, f"wrong numbers: {wrong:.2g}"
            except Exception as error:  # what TVM cannot build is of no use, whatever the type
                problem = str(error)[-200:]
            (failed if problem else tried).append(name)
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
    """Boosted trees where xgboost is installed, else none: then the search draws at random."""
    try:
        import xgboost  # noqa: F401

        return ms.cost_model.XGBModel(num_warmup_samples=16)
    except Exception:
        return ms.cost_model.RandomModel()
