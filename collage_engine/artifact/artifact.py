"""Writes an artifact: a folder that runs the placement without this project.

``model.so`` with the toolchains' modules, the weights beside it, the runtime libraries it needs, a
manifest, a sample that the shipped loaders check themselves against. There is never half of one
(``put_artifact``).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from collage_engine.artifact.manifest import file_entry, is_artifact
from collage_engine.lowering.built import BUILT_FILE, MODULE_FILE, BuiltModule
from collage_engine.machine.folders import replace_atomically, resolve
from collage_engine.machine.loader.run_artifact import FORMAT, MANIFEST, SAMPLES
from collage_engine.records.placement import Placement
from collage_engine.records.settings import Objective
from collage_engine.records.toolchain import RuntimeLibrary
from collage_engine.records.versions import ARTIFACT_FORMAT, __version__
from collage_engine.support.errors import ArtifactError
from collage_engine.support.files import why_not_writable, write_atomically, write_npz
from collage_engine.support.typed import decode
from collage_engine.toolchains.runtime.builder import HEADERS

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

SamplePlaces = Mapping[str, tuple[int, int]]
"""Where values begin in a sample's file, and how many bytes they are, by name: the loader in C++
reads them there."""
LOADERS = Path(__file__).resolve().parents[1] / "machine/loader"
ORT_SOURCES = LOADERS.parents[1] / "toolchains/onnxruntime/src"
"""Folder of the headers that speak to ONNX Runtime's C API."""
LOADER_FILES = (
    LOADERS / "run_artifact.py",
    LOADERS / "run_artifact.cc",
    LOADERS / "artifact.h",
    HEADERS / "collage_module.h",
    ORT_SOURCES / "ort_api.h",
    LOADERS.parents[1] / "patch.py",
)
"""What every artifact carries in its folder ``loader``."""
UNSAID = Placement(partitions=(), estimated_us=None)
"""Stands where an artifact is only checked, and does not say what its module runs."""


@dataclass(frozen=True, kw_only=True)
class ArtifactContents:
    """What an artifact says and carries besides its module."""

    inputs: Mapping[str, np.ndarray]
    """Sample inputs by name."""
    outputs: Mapping[str, np.ndarray]
    """True outputs by name: what the user's own file computes on them."""
    tolerance: float
    """On max|y−r| / max|r|, for the loaders' check."""
    by_output: Mapping[str, float] = field(default_factory=dict)
    """The same of outputs that have another one than the others; 0: they must be equal."""
    placement: Placement = UNSAID
    """What the module runs."""
    target: str = "cpu"
    versions: Mapping[str, str] = field(default_factory=dict)
    """Toolchain → version."""
    objective: Objective = "latency"
    """What the artifact is made for."""
    as_deployed: bool = True
    """Whether the placement was timed for the objective; if not, its time is that of one call."""
    streams: int = 1
    """Instances that are to run at once, for throughput."""
    unmeasured: str | None = None
    """Why the placement was not timed; None: it was."""


def check_target_folder(folder: Path) -> None:
    """Check that an artifact may be written to a folder: it is absent, empty, or an artifact.

    Raises:
        ArtifactError: It is something else, or cannot be written.
    """
    if folder.is_symlink() and not folder.exists():
        raise ArtifactError(f"{folder} is a link to nothing: remove it or choose another folder")
    place = resolve(folder)
    needed = [next(parent for parent in place.parents if parent.exists())]
    if place.exists():
        if not place.is_dir():
            raise ArtifactError(f"{folder} is a file: choose another folder for the artifact")
        try:
            empty = not any(place.iterdir())
        except OSError as error:
            raise ArtifactError(f"{folder} cannot be read: {error.strerror}") from error
        if not empty and not is_artifact(place):
            raise ArtifactError(
                f"{folder} is not empty and holds no artifact: choose another folder"
            )
        needed.insert(0, place)
    for where in needed:
        why = why_not_writable(where) if where.is_dir() else "no folder can be made"
        if why is not None:
            raise ArtifactError(f"{folder} cannot be written: {why} in {where}")
    if os.path.ismount(place):
        raise ArtifactError(f"{folder} is mounted by itself: name a folder inside it")


def write_artifact(
    model: ImportedModel, module_folder: Path, out: Path, contents: ArtifactContents
) -> Path:
    """Write an artifact from a folder that ``lowering.build.write_module`` made.

    Args:
        model: The imported model.
        module_folder: The folder of the built module.
        out: Where the artifact belongs.
        contents: The sample, the placement, and what else the manifest says.

    Returns:
        The artifact's folder, as an absolute path.

    Raises:
        ArtifactError: ``out`` may not be replaced or cannot be written; what was there is still
            there.
    """
    check_target_folder(out)
    built = decode((module_folder / BUILT_FILE).read_bytes(), BuiltModule)
    carried: dict[str, tuple[Path, str | None]] = {  # with their licences
        name: (module_folder / name, "the model's own")
        for name in (MODULE_FILE, *built.weight_files)
    }
    carried |= {library.name: (Path(library.file), library.licence) for library in built.libraries}
    carried |= {f"loader/{file.name}": (file, "Apache-2.0") for file in LOADER_FILES}
    for owner, texts in _licence_texts(built.libraries).items():
        carried |= {f"licences/{owner}-{text.name}": (text, None) for text in texts}

    def fill(folder: Path) -> None:
        for name, (file, _) in carried.items():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, folder / name)
        given, truth = (folder / name for name in SAMPLES)
        places = (
            write_npz(given, {name: contents.inputs[name] for name, _ in model.inputs}),
            write_npz(truth, {name: contents.outputs[name] for name, _ in model.outputs}),
        )
        manifest = _manifest(model, built, contents, *places)
        manifest["files"] = {name: file_entry(folder / name) for name in SAMPLES} | {
            name: file_entry(folder / name, licence)
            for name, (_, licence) in sorted(carried.items())
        }
        write_manifest(folder, manifest)

    put_artifact(out, fill)
    return out.absolute()


def put_artifact(out: Path, fill: Callable[[Path], None]) -> None:
    """Write the folder of an artifact whole, in place of what is there.

    Args:
        out: Where the artifact belongs, as ``check_target_folder`` accepts it.
        fill: Writes the artifact into the empty folder that it is given.

    Raises:
        ArtifactError: The folder cannot be written; what was there is still there.
    """
    try:
        replace_atomically(out, fill)
    except OSError as error:
        raise ArtifactError(
            f"the artifact cannot be written to {out}: {error.strerror or error}"
        ) from error


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write what the loaders read of an artifact."""
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / MANIFEST, text)


def _manifest(
    model: ImportedModel,
    built: BuiltModule,
    contents: ArtifactContents,
    input_places: SamplePlaces,
    output_places: SamplePlaces,
) -> dict[str, Any]:
    def values(of: Sequence[tuple[str, Any]], places: SamplePlaces) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "dtype": kind.dtype,
                "shape": None if kind.any_rank else list(kind.shape),
                "sample": places[name],
                **({"tolerance": contents.by_output[name]} if name in contents.by_output else {}),
            }
            for name, kind in of
        ]

    placement = contents.placement
    return {
        "format": FORMAT,
        "format_version": ARTIFACT_FORMAT,
        "model": {
            "name": Path(model.record.path).name,
            "sha256": model.record.sha256,
            "shapes": {name: list(shape) for name, shape in model.record.shapes.items()},
            **model.described,
        },
        "inputs": values(model.inputs, input_places),
        "outputs": values(model.outputs, output_places),
        "placement": {
            "partitions": msgspec.to_builtins(placement.partitions),
            "estimated_us": placement.estimated_us,
            "measured_us": placement.measured_us,
            "nan_losses": msgspec.to_builtins(placement.nan_losses),
            "kernels": [[kernel.name, kernel.part] for kernel in built.kernels],
            "hand_overs": _hand_overs(model, built),
        },
        "versions": {
            "collage-explorer": __version__,
            "apache-tvm": metadata.version("apache-tvm"),
            "apache-tvm-ffi": metadata.version("apache-tvm-ffi"),
            **{
                library.toolchain: library.version
                for library in built.libraries
                if not library.linked
            },
            **contents.versions,
        },
        # Beside its files and TVM's runtime: Python, for some parts.
        "requires": [
            _described(library)
            | {
                "what": "python",
                "module": library.python,
                "reason": (
                    f"{library.toolchain} runs through the Python module {library.python} "
                    f"{library.version}"
                ),
            }
            for library in built.libraries
            if library.python
        ],
        "target": contents.target,
        "device": "cuda" if built.architecture else "cpu",
        "architecture": built.architecture,
        "unmeasured": contents.unmeasured,
        "threads": built.threads,
        "spin": built.spin,
        "environment": built.environment,
        "streams": contents.streams if contents.objective == "throughput" else None,
        "objective": contents.objective,
        "expected": _expected(contents),
        "tolerance": contents.tolerance,
        "libraries": [
            _described(library) | {"needed": library.linked}
            for library in built.libraries
            if not library.python
        ],
    }


def _hand_overs(model: ImportedModel, built: BuiltModule) -> list[list[int]]:
    """Return the pairs of partitions, by their places, of which one reads what the other made."""
    owner: dict[int, int] = {
        operator: k for k, part in enumerate(built.parts) for operator in part.nodes
    }
    inputs = enumerate(model.graph.inputs)
    read = {(owner[source], owner[reader]) for reader, sources in inputs for source in sources}
    return [[maker, reader] for maker, reader in sorted(read) if maker != reader]


def _expected(contents: ArtifactContents) -> dict[str, Any]:
    """Return what the placement took when it was confirmed."""
    placement = contents.placement
    measured = placement.measured_us
    objective = contents.objective if contents.as_deployed else "latency"
    if objective == "throughput":
        return {"runs_per_s": 1e6 / measured if measured else None}
    if objective == "p99":
        return {"p99_us": measured}
    return {"latency_us": measured, "spread_us": msgspec.to_builtins(placement.spread_us)}


def _described(library: RuntimeLibrary) -> dict[str, Any]:
    """Return what a manifest says of any library."""
    about = {"file": library.name, "toolchain": library.toolchain}
    return about | {"version": library.version, "licence": library.licence}


def _licence_texts(libraries: Sequence[RuntimeLibrary]) -> dict[str, list[Path]]:
    """Return the licence files of the packages that the libraries came from, by library name."""
    wanted = {Path(library.file).resolve(): library.name for library in libraries}
    names = {path.name for path in wanted}
    texts: dict[str, list[Path]] = {}
    for distribution in metadata.distributions() if wanted else ():
        files = distribution.files or []
        owned = [Path(str(distribution.locate_file(file))) for file in files if file.name in names]
        for name in {wanted[path] for path in map(Path.resolve, owned) if path in wanted}:
            texts[name] = [
                Path(str(distribution.locate_file(file)))
                for file in files
                if file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE"))
                or "THIRDPARTY" in file.name.upper().replace("-", "").replace("_", "")
            ]
    return texts
