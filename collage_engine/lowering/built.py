"""Knows what there is to know of a built module once it lies in a folder."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path

import msgspec

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


def attribute_kernels(
    kernels: tuple[Kernel, ...], seen: list[tuple[str, float]]
) -> tuple[list[float], list[tuple[str, float]]]:
    """Attribute the calls of a profile to the partitions that they belong to.

    Calls are matched with kernels in order; kernels that the build dropped are skipped.

    Args:
        kernels: The kernels that ``main`` calls, in order.
        seen: The calls of a profile in order: name, and microseconds.

    Returns:
        The microseconds of each partition, and the calls outside of every partition (conversions
        and copies, without the virtual machine's own bookkeeping).
    """
    count = max((kernel.part for kernel in kernels), default=-1) + 1
    owned = [0.0] * count
    outside: list[tuple[str, float]] = []
    owners = kernels_of_calls(kernels, [name for name, _ in seen])
    for (name, us), kernel in zip(seen, owners, strict=True):
        if kernel is not None:
            owned[kernel.part] += us
        elif not name.startswith(BOOKKEEPING):
            outside.append((name, us))
    return owned, outside


def kernels_of_calls(kernels: Sequence[Kernel], names: Sequence[str]) -> list[Kernel | None]:
    """Return the kernel that each call is of; None: no partition's. See ``attribute_kernels``."""
    found: list[Kernel | None] = []
    at = 0
    for name in names:
        place = next((i for i in range(at, len(kernels)) if kernels[i].name == name), None)
        found.append(None if place is None else kernels[place])
        at = at if place is None else place + 1
    return found


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
