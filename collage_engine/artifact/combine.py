"""One artifact out of several: a folder for each shape, and one manifest above them.

The model's own file may be in it, too, for sizes that none of its entries has. Which runtime runs
it is measured: a file with open sizes may take longer than one whose sizes were set, above all at a
size that the runtime has not met before.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collage_engine.artifact.artifact import check_target_folder, put_artifact, write_manifest
from collage_engine.artifact.manifest import file_entry, read_manifest
from collage_engine.machine.loader import run_artifact as loader
from collage_engine.machine.loader.run_artifact import MANIFEST
from collage_engine.machine.worker import call_in_child
from collage_engine.model.onnx_file import files_beside
from collage_engine.model.values import for_onnx
from collage_engine.records.placement import LEAST_RUNS
from collage_engine.records.shapes import Sharing
from collage_engine.support.errors import (
    ArtifactError,
    CollageError,
    ToolchainError,
    last_line,
    one_sentence,
)
from collage_engine.support.time_limits import JOB_S
from collage_engine.toolchains.registry import get

Transfer = Callable[[Path, Path], object]
FOLDER = "own"
"""Folder of an artifact in which the file lies, with the weights that lay beside it."""


@dataclass(frozen=True)
class OwnFile:
    """A model's own file, the runtime that is to run it, and what that took."""

    path: Path
    runtime: str
    threads: int
    known_us: tuple[float, ...] = ()
    """For each artifact's sample the shortest call, once the runtime had met the size."""
    total_us: float = 0.0
    """These, and the first call at each size."""

    def files(self) -> tuple[dict[str, str], dict[str, tuple[Path, str]]]:
        """Return what a manifest says of it, and the files that belong into the artifact.

        These are by their names there, with their licences; among them is the library by which the
        loader in C++ runs it.
        """
        files = {
            f"{FOLDER}/{location}": (self.path.parent / location, "the model's own")
            for location in (self.path.name, *files_beside(self.path))
        }
        about = {"runtime": self.runtime, "file": f"{FOLDER}/{self.path.name}"}
        with contextlib.suppress(ToolchainError):  # it is not installed: the system's is taken
            (library, *_) = get(loader.RUNTIMES[0]).runtime_libraries()
            about["library"] = f"{FOLDER}/{library.name}"
            files[about["library"]] = Path(library.file), library.licence
        return about, files


def combine_artifacts(
    folders: Sequence[Path],
    dims: Sequence[Mapping[str, int]],
    out: Path,
    own: OwnFile | None = None,
    padding: str | None = None,
) -> Sharing:
    """Write several artifacts of one model as one, each in a folder of its own, unchanged.

    Equal files are stored once, by hard links. In a copy of the folder that has no links they take
    their place several times, and nothing else changes.

    Args:
        folders: The artifacts, each for other shapes of the inputs.
        dims: For each of them the sizes of the dimensions that tell it from the others.
        out: The folder to write; it must be new, empty or an artifact.
        own: The model's own file, which runs other shapes; None: they are refused.
        padding: The dimension of which fewer rows may be padded, if there is one.

    Returns:
        How large it is.

    Raises:
        ArtifactError: They are for different devices, or ``out`` cannot be written; then what was
            there is still there.
    """
    check_target_folder(out)
    manifests = [read_manifest(folder) for folder in folders]
    for key in ("target", "device", "architecture"):
        if len({manifest.get(key) for manifest in manifests}) > 1:
            raise ArtifactError(f"artifacts for different devices cannot be combined ({key})")
    entries = [
        {
            "folder": str(number),
            "dims": dict(sizes),
            "inputs": manifest["inputs"],
            "outputs": manifest["outputs"],
        }
        for number, (sizes, manifest) in enumerate(zip(dims, manifests, strict=True))
    ]
    if not all(padding in sizes for sizes in dims):
        padding = None
    if padding is not None and own is not None:
        for entry, manifest, us in zip(entries, manifests, own.known_us, strict=True):
            placed_us = manifest["placement"]["measured_us"] or 0.0
            # The own file's time is taken to follow the number of rows.
            entry["pays_from"] = math.ceil(placed_us / us * entry["dims"][padding])
    shared = _shared(manifests) | {"padding": padding}
    files_of_own: dict[str, tuple[Path, str]] = {}
    if own is not None:
        shared["others"], files_of_own = own.files()
    of_own = {name: file_entry(*file) for name, file in files_of_own.items()}

    def fill(folder: Path) -> None:
        stored: dict[str, Path] = {}

        def put(source: Path, name: str, digest: str, transfer: Transfer = os.link) -> None:
            """Store a file, as another name of an equal one where there is one."""
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                (os.link if digest in stored else transfer)(stored.get(digest, source), target)
            except OSError:
                shutil.copyfile(source, target)
            stored[digest] = target

        files = {}
        for entry, source, manifest in zip(entries, folders, manifests, strict=True):
            for name, about in manifest["files"].items():
                put(source / name, f"{entry['folder']}/{name}", about["sha256"])
            name = f"{entry['folder']}/{MANIFEST}"
            shutil.copyfile(source / MANIFEST, folder / name)
            files[name] = file_entry(folder / name)
        for name, about in manifests[0]["files"].items():
            if name.startswith("loader/"):
                put(folders[0] / name, name, about["sha256"])
                files[name] = about
        for name, (source, _) in files_of_own.items():
            put(source, name, of_own[name]["sha256"], shutil.copyfile)  # the user's stays apart
        write_manifest(folder, shared | {"entries": entries, "files": files | of_own})

    put_artifact(out, fill)
    every = [*(manifest["files"] for manifest in manifests), of_own]
    sizes = [about for files in every for about in files.values()]
    return Sharing(
        bytes=sum({about["sha256"]: about["bytes"] for about in sizes}.values()),
        apart_bytes=sum(about["bytes"] for about in sizes),
        padded=padding or "",
        others=own.runtime if own is not None else "",
    )


def _shared(manifests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the manifest above those of all shapes says of them together."""
    first = manifests[0]
    shared: dict[str, Any] = {
        key: first[key]
        for key in ("format", "format_version", "target", "device", "architecture")
        if key in first
    }
    shared["model"] = {key: about for key, about in first["model"].items() if key != "shapes"}
    shared["threads"] = max(manifest["threads"] for manifest in manifests)
    # One setting for the whole process: as many threads as any entry has. Nobody spins where one
    # entry must not, since the variables that forbid it stand in no other entry.
    by_threads = sorted(manifests, key=lambda manifest: manifest["threads"])
    shared["environment"] = {
        k: v for thread in by_threads for k, v in thread["environment"].items()
    }
    return shared


def fastest(path: Path, artifacts: Sequence[Path], menu: Collection[str]) -> OwnFile:
    """Time a model's own file on the samples of artifacts, on each runtime that may run it.

    Args:
        path: The ONNX file.
        artifacts: Artifacts of it for single shapes.
        menu: Toolchains that took part; where no runtime is among them, all may run it.

    Raises:
        ArtifactError: The file has changed, the artifacts are for a device, or no runtime computes
            what the samples say.
    """
    manifests = [read_manifest(folder) for folder in artifacts]
    if manifests[0]["device"] != "cpu":
        raise ArtifactError("--others: a model's own file runs on the processor only")
    if loader.sha256(path) != manifests[0]["model"]["sha256"]:
        raise ArtifactError(f"{path} was changed since it was placed: place it again")
    names = [name for name in loader.RUNTIMES if name in menu] or loader.RUNTIMES
    environment = {k: v for each in manifests for k, v in each["environment"].items()}
    threads = max(manifest["threads"] for manifest in manifests)
    found: list[OwnFile] = []
    reasons = []
    for name in names:
        request = OwnFile(path.absolute(), name, threads), artifacts
        target = f"{__name__}:timed"
        try:
            found.append(call_in_child(target, request, timeout_s=JOB_S, env=environment))
        except CollageError as error:
            reasons.append(f"{name}: {one_sentence(last_line(str(error)))}")
    if not found:
        raise ArtifactError(f"--others: no runtime runs {path} ({'; '.join(reasons)})")
    return min(found, key=lambda own: own.total_us)


def timed(request: tuple[OwnFile, Sequence[Path]]) -> OwnFile:
    """Load a file and call it with the sample of each artifact in turn; for a child process.

    Raises:
        ArtifactError: It computes something else than the samples say.
    """
    own, artifacts = request
    run = loader.OwnFile(own.path, own.runtime, own.threads)
    samples = []
    for folder in artifacts:
        manifest = read_manifest(folder)
        inputs, truth = loader.read_sample(folder, manifest)
        samples.append((for_onnx(inputs, inputs), truth, manifest))
    run(samples[0][0])  # loads it
    seconds: list[list[float]] = [[] for _ in samples]
    for _ in range(LEAST_RUNS):  # the first one of a size is told from the others
        for taken, (inputs, truth, manifest) in zip(seconds, samples, strict=True):
            start = time.perf_counter()
            outputs = run(inputs)
            taken.append(time.perf_counter() - start)
            _, wrong = loader.compared(manifest, outputs, truth)
            if wrong:
                raise ArtifactError(wrong)
    known = tuple(min(taken[1:]) * 1e6 for taken in seconds)
    total = sum(known) + sum(taken[0] for taken in seconds) * 1e6
    return replace(own, known_us=known, total_us=total)
