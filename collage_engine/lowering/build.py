"""Build a cover into an executable, and write it as a folder that loads from anywhere."""

from __future__ import annotations

import shutil
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collage_engine.lowering.built import BUILT_FILE, MODULE_FILE, BuiltModule
from collage_engine.lowering.extract import function_of_candidate
from collage_engine.lowering.link import link_shared, pack_imports
from collage_engine.lowering.rewrite import assemble, execution_order
from collage_engine.lowering.shared_weights import FOLDER, SharedWeights
from collage_engine.lowering.virtual_machine import (
    VIRTUAL_MACHINE,
    virtual_machine_environment,
)
from collage_engine.records.candidate import Candidate
from collage_engine.records.graph import ModelRecord
from collage_engine.records.toolchain import RuntimeLibrary
from collage_engine.support.errors import ArtifactError, ToolchainError, short_reason
from collage_engine.support.files import link_file
from collage_engine.toolchains.runtime import weight_files

if TYPE_CHECKING:
    import numpy as np

    from collage_engine.lowering.emit import LoweredParts
    from collage_engine.model.importer import ImportedModel

Cover = Sequence[Candidate]
"""The candidates of a cover, in any order."""
LARGEST_MODULE = 1 << 31
"""Bytes of a shared library, at most: its code reaches 2 GiB far (x86-64 psABI, small code
model)."""


@dataclass(frozen=True)
class Built:
    """A cover as a VM executable, with all that running it elsewhere needs."""

    executable: Any
    about: BuiltModule
    weights: SharedWeights | None = None
    """Where further weights lie as files, which the module shares with others; None: in it."""
    given: Mapping[str, Sequence[bytes | np.ndarray]] = field(default_factory=dict)
    """The weights that the toolchain's module of a symbol was given."""


USE_GRAPH = "relax.backend.use_cuda_graph"
"""TVM's pass option: what runs between two points that the host must see is one CUDA graph."""


def may_spin(cover: Cover) -> bool:
    """Return whether idle threads may spin as long as each runtime's do by itself.

    They may not where two runtimes have threads of their own, which would take each other's time:
    they then spin for ``SHORT_SPIN_TURNS`` at most.
    """
    from collage_engine.toolchains.registry import about

    names = {part.instance.toolchain for part in cover}
    return len({name if about(name).own_threads else VIRTUAL_MACHINE for name in names}) <= 1


def build_cover(
    model: ImportedModel,
    cover: Cover,
    spin: bool | None = None,
    lowered: LoweredParts | None = None,
) -> Built:
    """Compile a whole cover into one executable of TVM's virtual machine.

    Args:
        model: The imported model.
        cover: The candidates, which hold every operator exactly once, in any order.
        spin: Whether idle threads spin; None: as ``may_spin`` says.
        lowered: What partitions of earlier covers were lowered to; None: there are none.

    Returns:
        The executable, and what is needed for running it elsewhere.

    Raises:
        ToolchainError: A toolchain cannot take a partition, which the sentence names; the weights
            are more than a module holds; or TVM cannot build the whole.
    """
    import tvm

    from collage_engine.kernels.scheduler import count_unscheduled
    from collage_engine.lowering.executable import Executable
    from collage_engine.toolchains.capabilities import LowersToTir
    from collage_engine.toolchains.registry import get
    from collage_engine.toolchains.runtime.cuda import CUDART, cudart_library
    from collage_engine.toolchains.runtime.host import library as host_library

    spin = may_spin(cover) if spin is None else spin
    on_device = [part for part in cover if part.instance.architecture]
    architecture = on_device[0].instance.architecture if on_device else ""
    threads = max((part.instance.threads for part in cover), default=1)
    functions = [
        function_of_candidate(model, part, f"part{position}", spin)
        for position, part in enumerate(cover)
    ]
    order = execution_order(functions)
    functions = [
        replace(
            functions[position],
            symbol=f"p{k}_{cover[position].instance.toolchain}",
            only_saved=True,
        )
        for k, position in enumerate(order)
    ]
    # By partition the constants that it is given, with their bytes.
    values = model.graph.values
    constants = [{i: values[i].type.bytes for i in function.constants} for function in functions]
    part_weights = tuple(sum(given.values()) for given in constants)
    held = sum(
        size
        for function, size in zip(functions, part_weights, strict=True)
        if not get(function.instance.toolchain).reads_weight_files
    )
    if held > LARGEST_MODULE:
        raise ToolchainError(
            f"a module holds at most 2 GB of weights, and these were {held / 1e9:.1f} GB"
        )
    assembled = assemble(model, functions, lowered)
    module = assembled.module()
    try:
        with tvm.transform.PassContext(config={USE_GRAPH: bool(on_device)}):
            executable = Executable(module, architecture)
    except Exception as error:
        reason = short_reason(error)
        raise ToolchainError(f"TVM cannot build the placement: {reason}") from error
    names = executable.names
    libraries: dict[str, RuntimeLibrary] = {}
    environment = virtual_machine_environment(threads, spin)
    for name in dict.fromkeys(part.instance.toolchain for part in cover):
        environment.update(get(name).about.variables(threads, spin))
        users = [f for f in functions if name == f.instance.toolchain]
        for library in get(name).libraries_for(users):
            libraries.setdefault(library.name, library)
    if architecture:  # TVM's own part for devices is linked to it
        libraries.setdefault(CUDART, cudart_library(VIRTUAL_MACHINE))
        if len(on_device) < len(cover):
            bridge = host_library()
            libraries.setdefault(bridge.name, bridge)
    files = [file for each in assembled.externals for file in weight_files.files_of(each)]
    about = BuiltModule(
        parts=tuple(cover[position] for position in order),
        kernels=tuple(
            msgspec.structs.replace(kernel, name=names.get(kernel.name, kernel.name))
            for kernel in assembled.calls
        ),
        libraries=tuple(libraries.values()),
        environment=environment,
        threads=threads,
        spin=spin,
        part_weights=part_weights,
        repeated_bytes=sum(part_weights) - sum(dict(ChainMap(*constants)).values()),
        weight_files=tuple(dict.fromkeys(file.name for file in files)),
        unscheduled=count_unscheduled(module),
        notes=tuple(dict.fromkeys(note for f in functions for note in f.notes)),
        architecture=architecture,
    )
    weights = lowered.weights if lowered is not None else None
    given: dict[str, Sequence[bytes | np.ndarray]] = {
        function.symbol: function.weights or [model.constant(k) for k in function.constants]
        for function in functions
        if not isinstance(get(function.instance.toolchain), LowersToTir)
    }
    return Built(executable, about, weights, given)


def write_module(built: Built, folder: Path, *, link: bool = False) -> BuiltModule:
    """Write ``model.so``, the runtime libraries it needs and ``built.json`` into a folder.

    ``model.so`` names our runtimes as NEEDED and looks for them beside itself, so that the folder
    can be moved. The folder has to be a fresh one: ``dlopen`` knows a library by its path and would
    return an old one.

    Args:
        built: The compiled cover.
        folder: The folder, which is made where it is missing.
        link: Whether symbolic links to the libraries are written instead of copies, for a folder
            that stays where it is.

    Returns:
        The content of ``built.json``.

    Raises:
        ArtifactError: The folder cannot be written, or ``model.so`` cannot be linked.
        ToolchainError: There is no linker.
    """
    folder.mkdir(parents=True, exist_ok=True)
    linked = []
    about, weights = built.about, built.weights
    names: list[str] = []

    def cut(blob: bytes) -> bytes:
        if weights is not None:
            blob, names[:] = weights.cut(blob, built.given)
            (folder / FOLDER).mkdir(exist_ok=True)
            for name in names:
                link_file((weights.folder / name).resolve(), folder / FOLDER / name)
        return blob

    try:
        for name in about.weight_files:
            link_file((weight_files.folder() / name).resolve(), folder / name)
        for library in about.libraries:
            place = folder / library.name
            if link:
                place.symlink_to(library.file)
            else:
                shutil.copyfile(library.file, place)
            if library.linked:
                linked.append(str(place))
        built.executable.export_library(
            str(folder / MODULE_FILE),
            fcompile=link_shared,
            libraries=linked,
            fpack_imports=partial(pack_imports, architecture=about.architecture, cut=cut),
        )
        shared = tuple(f"{FOLDER}/{name}" for name in names)
        about = msgspec.structs.replace(about, weight_files=about.weight_files + shared)
        (folder / BUILT_FILE).write_bytes(msgspec.json.encode(about))
    except OSError as error:
        raise ArtifactError(f"{folder} cannot be written: {error.strerror or error}") from error
    except RuntimeError as error:
        raise ArtifactError(f"model.so cannot be linked: {str(error).strip()[-400:]}") from error
    return about


class BuildCover(msgspec.Struct, frozen=True, kw_only=True):
    """Build a cover of a model file into a fresh folder; an empty one only opens the model."""

    model: ModelRecord
    """Which model file, as it must be."""
    cover: tuple[Candidate, ...] = ()
    spin: bool | None = None
    folder: str = ""


@lru_cache(maxsize=1)
def _lowered_parts(model: tuple[object, ...], folder: Path) -> LoweredParts:
    """Return what partitions of the last model were lowered to.

    Args:
        model: What tells the model.
        folder: Where its weights lie.
    """
    from collage_engine.lowering.emit import LoweredParts

    return LoweredParts(folder)


class BuildJob:
    """What the child does for a request."""

    def __call__(self, request: BuildCover) -> BuiltModule | None:
        """Import the model, then build and export the cover; what was built."""
        from collage_engine.lowering.reference import opened_model

        about = request.model
        file = about.path, tuple(about.shapes.items()), about.sha256
        model = opened_model(*file)
        if not request.cover:
            return None
        folder = Path(request.folder)
        lowered = _lowered_parts(file, folder.parent / FOLDER)
        built = build_cover(model, request.cover, request.spin, lowered)
        return write_module(built, folder, link=True)
