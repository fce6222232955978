"""Checks of the module that a toolchain compiles: called often, called by several threads.

They are for toolchains with a runtime module of their own; what is lowered to TIR has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil

from collage_engine.lowering.tensors import empty, from_numpy, to_numpy
from collage_engine.run.conformance.subject import Case, NotApplicable, Subject, demand, described
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.capabilities import LowersToTir

CALLERS = 4
"""Threads that call one module at once; chosen."""
TURNS = 20
"""Calls that each of them makes: twice as many as a module without turns gave wrong values in."""
BATCHES = (500, 3000, 3000, 3000)
"""Calls of a module before its memory is looked at again, the first ones to warm it; chosen."""
LEAK_BYTES = 170 * BATCHES[-1]
"""Growth of the process in every batch from which calls leave something behind: so many bytes a
call are less than any object that a runtime makes for a call."""

Call = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def threads_take_turns(subject: Subject) -> str:
    """Call of one module from several threads at once give what calls one by one give."""
    case, function, module = _compiled(subject)
    call = _call(module, function)
    first = case.truth.inputs_of(function)
    given = [[_scaled(a, 1.0 + 0.1 * k) for a in first] for k in range(CALLERS)]
    alone = [call(inputs) for inputs in given]

    def repeat(k: int) -> bool:
        results = (call(given[k]) for _ in range(TURNS))
        return all(_equal(outputs, alone[k]) for outputs in results)

    with ThreadPoolExecutor(CALLERS) as pool:
        right = list(pool.map(repeat, range(CALLERS)))
    demand(all(right), f"{described(case, function)}: results differ when {CALLERS} threads call")
    return f"{CALLERS} threads"


def calls_leave_nothing(subject: Subject) -> str:
    """Memory stands still over thousands of calls, and arguments may lie elsewhere each time.

    Something else in the process may grow meanwhile, but what every call leaves behind grows in
    every batch.
    """
    case, function, module = _compiled(subject)
    call = _call(module, function)
    given = case.truth.inputs_of(function)
    for _ in range(3):  # other addresses, while the earlier arguments are held
        subject.compare(case, function, call(given))
    arguments = _arguments(function, given)
    plain = module.get_function(function.symbol)
    grown = []
    for calls in BATCHES:
        before = psutil.Process().memory_info().rss
        for _ in range(calls):
            plain(*arguments)
        grown.append(psutil.Process().memory_info().rss - before)
    least = min(grown[1:])
    demand(
        least < LEAK_BYTES,
        f"{described(case, function)}: {BATCHES[-1]} calls leave {least} bytes behind every time",
    )
    return f"{sum(BATCHES)} calls"


def _compiled(subject: Subject) -> tuple[Case, Function, Any]:
    """Return the largest of its candidates, and the runtime module that it compiles for it."""
    subject.needs_to_run()
    if isinstance(subject.toolchain, LowersToTir):
        raise NotApplicable("it has no runtime module of its own")
    instance = subject.instances()[0]
    pairs = [(c, f) for c in subject.cases for f in subject.functions(c, instance)]
    case, function = max(pairs, key=lambda each: len(each[1].members))
    return case, function, subject.toolchain.compile(function)


def _arguments(function: Function, inputs: Sequence[np.ndarray]) -> list[Any]:
    given = [
        from_numpy(array, function.input_type(index))
        for array, index in zip(inputs, function.inputs, strict=True)
    ]
    return given + [empty(function.output_type(index)) for index in function.outputs]


def _call(module: Any, function: Function) -> Call:
    """Return a call with tensors of its own each time."""

    def call(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        arguments = _arguments(function, inputs)
        module.get_function(function.symbol)(*arguments)
        results = zip(arguments[len(inputs) :], function.outputs, strict=True)
        return [to_numpy(tensor, function.output_type(index)).copy() for tensor, index in results]

    return call


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    return (array * factor).astype(array.dtype) if array.dtype.kind == "f" else array


def _equal(outputs: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(outputs, wanted, strict=True))
