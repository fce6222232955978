"""Knows what there is to know of a built module once it lies in a folder."""

from __future__ import annotations

import runpy
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from collage_engine.lowering.stopwatch import KernelTime
from collage_engine.records.candidate import Candidate
from collage_engine.records.toolchain import RuntimeLibrary
from collage_engine.support.typed import decode

MODULE_FILE = "model.so"
"""Name of the compiled module in its folder."""
BUILT_FILE = "built.json"
"""Name of the file beside it that holds a ``BuiltModule``."""


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that ``main`` calls; ``part`` is the partition's place in execution order."""

    name: str
    part: int
    operators: tuple[int, ...] = ()
    """Numbers of the operators that it computes; empty: those of its whole partition."""


class BuiltModule(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a module; ``built.json`` beside it, which is not part of an artifact."""

    parts: tuple[Candidate, ...]
    """In execution order: part k is partition ``p<k>``."""
    kernels: tuple[Kernel, ...]
    libraries: tuple[RuntimeLibrary, ...]
    environment: dict[str, str]
    threads: int
    spin: bool
    part_weights: tuple[int, ...] = ()
    """Bytes of constants that each partition was given."""
    repeated_bytes: int = 0
    """Bytes of constants that more than one partition was given, counted from the second on."""
    weight_files: tuple[str, ...] = ()
    """Names of the files beside the module that hold its weights, where those are large."""
    unscheduled: int = 0
    """Kernels that run TVM's plain loops, tens of times slower than written ones, since no rule
    could write them."""
    notes: tuple[str, ...] = ()
    """What users should know of how toolchains compiled the partitions, in sentences."""
    architecture: str = ""
    """What device code is compiled for (sm_90a); empty: all of it runs on the host."""


def working_calls(
    kernels: Sequence[Kernel], calls: Iterable[KernelTime]
) -> Iterator[tuple[KernelTime, Kernel | None]]:
    """Yield the calls of a profile that do work, each with the kernel that it is of.

    Calls are matched with kernels in order; kernels that the build dropped are skipped. The virtual
    machine's own bookkeeping counts among what passes before the next call.

    Args:
        kernels: The kernels that ``main`` calls, in order.
        calls: The calls of a profile in order.

    Yields:
        A call, and its kernel; None: it belongs to no partition, as a conversion or a copy.
    """
    at, gap_us = 0, 0.0
    for call in calls:
        place = next((i for i in range(at, len(kernels)) if kernels[i].name == call.kernel), None)
        gap_us += call.gap_us
        if place is None and call.kernel.startswith(BOOKKEEPING):
            gap_us += call.us
            continue
        yield call._replace(gap_us=gap_us), None if place is None else kernels[place]
        at, gap_us = at if place is None else place + 1, 0.0


BOOKKEEPING = (
    "vm.builtin.alloc_",
    "vm.builtin.null_value",
    "vm.builtin.check_",
    "vm.builtin.match_",
    "vm.builtin.make_",
    "vm.builtin.tuple_getitem",
    "vm.builtin.reshape",
    "vm.builtin.copy",
    "vm.builtin.kill_object",
    "vm.builtin.tensor_to_shape",
    "vm.builtin.shape_of",
)
"""VM calls that move no data: allocations, checks, tuples, views (``copy`` copies a reference)."""


def run_python_parts(module: str | Path) -> None:
    """Run the Python files that a module needs before it is loaded; most modules need none.

    A toolchain whose C++ headers were not there when it was built runs through its Python
    interface; what opens it lies beside ``model.so`` and registers itself when it is run.

    Args:
        module: A ``model.so`` in a folder that ``build.write_module`` made.
    """
    about = Path(module).parent / BUILT_FILE
    if not about.is_file():
        return
    built = decode(about.read_bytes(), BuiltModule)
    for library in built.libraries:
        if library.python:
            runpy.run_path(str(about.parent / library.name), run_name="collage_python_part")
