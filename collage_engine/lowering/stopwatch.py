"""A stopwatch for the kernels of TVM's VM that costs a quarter of a microsecond a call.

An instrument written in Python gets every argument of the call turned into a Python object,
which takes longer than a small kernel. This one is a bare C function (of tvm-ffi's stable ABI)
that only notes the time.
"""

from __future__ import annotations

import ctypes
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from collage_engine.machine.device import least_disturbed

_NAME = b"collage.stopwatch"


class _Bytes(ctypes.Structure):
    """The C struct ``TVMFFIByteArray``."""

    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


_Instrument = ctypes.CFUNCTYPE(  # TVMFFISafeCallType: handle, arguments, their number, result
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p
)

_stamps: list[int] = []


def _note(_handle: int, _arguments: int, _count: int, _result: int) -> int:
    _stamps.append(time.perf_counter_ns())
    return 0


_note_in_c = _Instrument(_note)  # kept for as long as TVM may call it


def _stopwatch() -> Any:
    """Return the instrument as a tvm-ffi function."""
    import tvm_ffi
    from tvm_ffi import libinfo

    stopwatch = tvm_ffi.get_global_func(_NAME.decode(), allow_missing=True)
    if stopwatch is not None:
        return stopwatch
    library = ctypes.CDLL(str(libinfo.find_libtvm_ffi()))
    handle = ctypes.c_void_p()
    name = _Bytes(_NAME, len(_NAME))
    if library.TVMFFIFunctionCreate(None, _note_in_c, None, ctypes.byref(handle)):
        raise RuntimeError("tvm-ffi cannot make the stopwatch")
    failed = library.TVMFFIFunctionSetGlobal(ctypes.byref(name), handle, 1)
    library.TVMFFIObjectDecRef(handle)
    if failed:
        raise RuntimeError("tvm-ffi cannot register the stopwatch")
    return tvm_ffi.get_global_func(_NAME.decode())


class KernelTime(NamedTuple):
    """A call the VM made, in its place in the order of calls."""

    kernel: str
    us: float
    gap_us: float = 0.0
    """Microseconds since the call before, in which the virtual machine works."""


def time_kernels(vm: Any, call: Callable[[], Any], runs: int) -> tuple[list[KernelTime], float]:
    """Time every call that TVM's virtual machine makes in a run of a model.

    The stopwatch's own cost is subtracted from calls and from what passes between them: what the
    cheapest call (setting a register to nothing) seems to take.

    Args:
        vm: The virtual machine.
        call: Runs the model once.
        runs: How many runs are timed, after one that warms up.

    Returns:
        The calls in their order; and the microseconds of a run before the first call and after the
        last one. All are medians of the runs that were disturbed least.

    Raises:
        RuntimeError: The machine made other calls from one run to the next.
    """
    names: list[str] = []

    def name_it(_func: Any, name: str, before: bool, *_: Any) -> int:
        if before:
            names.append(str(name))
        return 0

    vm.set_instrument(name_it)
    call()
    vm.set_instrument(_stopwatch())
    moments: list[list[int]] = []
    for _ in range(runs + 1):
        _stamps.clear()
        began = time.perf_counter_ns()
        call()
        moments.append([began, *_stamps, time.perf_counter_ns()])
    vm.set_instrument(None)  # one in Python would slow down every later call of the model
    if any(len(moment) != 2 * len(names) + 2 for moment in moments):
        raise RuntimeError("the VM made other calls from one run to the next")
    intervals = [[after - at for at, after in itertools.pairwise(run)] for run in moments[1:]]
    kept = zip(*least_disturbed(intervals), strict=True)
    # What passes before the first call, that call, what passes before the second one, …
    typical = [statistics.median(each) for each in kept]
    gaps, medians = typical[:-1:2], typical[1::2]
    empty = [ns for name, ns in zip(names, medians, strict=True) if name == "vm.builtin.null_value"]
    cost = statistics.median(empty or [min(medians, default=0.0)])
    calls = [
        KernelTime(name, max(0.0, ns - cost) / 1000, max(0.0, gap - cost) / 1000)
        for name, ns, gap in zip(names, medians, gaps, strict=True)
    ]
    return calls, (typical[0] + typical[-1]) / 1000
