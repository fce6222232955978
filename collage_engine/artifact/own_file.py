"""Puts the model's own file into an artifact, for sizes that none of its entries has.

Which runtime runs it is measured: a file with open sizes may take longer than one whose sizes were
set, above all at a size that the runtime has not met before.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from collage_engine.artifact.manifest import read_manifest
from collage_engine.machine.loader import run_artifact as loader
from collage_engine.machine.worker import call_in_child
from collage_engine.model.onnx_external import every_tensor
from collage_engine.model.onnx_file import read_without_weights
from collage_engine.model.values import for_onnx
from collage_engine.records.placement import LEAST_RUNS
from collage_engine.support.errors import (
    ArtifactError,
    CollageError,
    ToolchainError,
    last_line,
    one_sentence,
)
from collage_engine.support.time_limits import JOB_S
from collage_engine.toolchains.registry import get

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


def files_beside(path: Path) -> list[str]:
    """Return the names of the files beside a model that hold its weights."""
    tensors = every_tensor(read_without_weights(path))
    return sorted({ExternalDataInfo(t).location for t in tensors if uses_external_data(t)})


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
