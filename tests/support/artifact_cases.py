"""Makes what the tests of artifacts share: a small model, covers of it, and the loader in C++."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from collage_engine.artifact.artifact import (
    LOADERS,
    ORT_SOURCES,
    ArtifactContents,
    write_artifact,
)
from collage_engine.lowering.build import build_cover, write_module
from collage_engine.lowering.emit import LoweredParts
from collage_engine.lowering.reference import original_outputs
from collage_engine.lowering.shared_weights import FOLDER
from collage_engine.model.importer import ImportedModel, import_model
from collage_engine.records.candidate import Candidate
from collage_engine.records.placement import Partition, Placement
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.files import locked
from collage_engine.toolchains.runtime.builder import HEADERS, build_folder
from tests.support.covers import candidate_on

MNIST = Path(__file__).parents[2] / "resources/models/mnist.onnx"
LOADER = LOADERS / "run_artifact.cc"


def cover_in_turn(model: ImportedModel, toolchains: Sequence[str]) -> list[Candidate]:
    """Cuts the model into as many even runs of operators as toolchains, one thread each."""
    count = len(model.graph.operators)
    cuts = [count * k // len(toolchains) for k in range(len(toolchains) + 1)]
    return [
        candidate_on(ToolchainInstance(toolchain=name, threads=1), tuple(range(first, last)))
        for name, first, last in zip(toolchains, cuts, cuts[1:], strict=False)
    ]


def sample_of(
    model: ImportedModel, cover: Sequence[Candidate] = (), tolerance: float = 1e-4
) -> ArtifactContents:
    """Returns random inputs of the model, what its file computes of them, and the placement."""
    inputs = model.random_inputs(0)
    outputs = original_outputs(model, inputs)
    parts = tuple(
        Partition(
            id=f"p{number}",
            candidate=part.id,
            toolchain=part.instance.toolchain,
            config=dict(part.instance.config),
            nodes=part.nodes,
            onnx_nodes=(),
            estimated_us=None,
        )
        for number, part in enumerate(cover)
    )
    placement = Placement(partitions=parts, estimated_us=None)
    return ArtifactContents(
        inputs=inputs, outputs=outputs, tolerance=tolerance, placement=placement
    )


def artifact_of(
    model: ImportedModel, cover: Sequence[Candidate], folder: Path, tolerance: float = 1e-4
) -> Path:
    """Builds a cover and writes the artifact with a sample; returns its folder below ``folder``."""
    lowered = LoweredParts(folder / FOLDER)
    write_module(build_cover(model, cover, lowered=lowered), folder / "built", link=True)
    contents = sample_of(model, cover, tolerance)
    return write_artifact(model, folder / "built", folder / "artifact", contents)


def artifact_maker(
    covers: dict[str, list[str]], new_folder: Callable[[str], Path]
) -> Callable[[str], Path]:
    """Makes (once) and gives the artifact of a named cover of MNIST."""
    model = import_model(MNIST)
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = artifact_of(model, cover_in_turn(model, covers[name]), new_folder(name))
        return made[name]

    return make


def compile_loader(source: Path = LOADER) -> Path:
    """Compile the C++ loader as its user would, by the wheels' headers and libraries.

    It is kept beside the compiled runtimes, so that equal sources are compiled once.

    Args:
        source: Another program than that of the loader, which includes its headers.

    Returns:
        The program.
    """
    import tvm
    import tvm_ffi.libinfo

    config = [sys.executable, "-m", "tvm_ffi.config"]
    flags = subprocess.run([*config, "--cxxflags"], capture_output=True, text=True, check=True)
    tvm_lib = Path(tvm.__file__).parent / "lib"
    ffi_lib = Path(tvm_ffi.libinfo.find_libtvm_ffi()).parent
    command = [
        os.environ.get("CXX", "g++"),
        "-std=c++17",
        "-O1",
        *flags.stdout.split(),
        f"-I{LOADERS}",
        f"-I{ORT_SOURCES}",
        f"-I{HEADERS}",
        str(source),
        "-Wl,--no-as-needed",
        f"-L{tvm_lib}",
        "-ltvm_runtime",
        f"-L{ffi_lib}",
        "-ltvm_ffi",
        f"-Wl,-rpath,{tvm_lib}",
        f"-Wl,-rpath,{ffi_lib}",
    ]
    digest = hashlib.sha256(repr(command).encode())
    headers = [*LOADERS.glob("*.h"), *ORT_SOURCES.glob("*.h"), *HEADERS.glob("*.h")]
    for file in (source, *sorted(headers)):
        digest.update(file.read_bytes())
    folder = build_folder()
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"tests-run_artifact-{digest.hexdigest()[:16]}"
    with locked(f"{out}.lock"):
        if not out.exists():
            new = out.with_suffix(".new")
            subprocess.run([*command, "-o", str(new)], check=True, timeout=240)
            new.replace(out)
    return out


WITH_LOADER = """
import importlib.util, sys
import numpy as np
spec = importlib.util.spec_from_file_location("loader", sys.argv[1] + "/loader/run_artifact.py")
loader = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loader)
model = loader.load(sys.argv[1])
outputs = model(loader.read_npz(sys.argv[2], {}))
np.savez(sys.argv[3], *outputs)
"""
"""Runs an artifact by the loader that it carries: its folder, inputs, and where outputs go."""


def run_with_loader(
    artifact: Path, inputs: Path, outputs: Path
) -> subprocess.CompletedProcess[str]:
    """Run an artifact on inputs from a file, as a user's own program would."""
    command = [sys.executable, "-c", WITH_LOADER, str(artifact), str(inputs), str(outputs)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def run_cpp(loader: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the C++ loader in an empty environment."""
    return subprocess.run(
        [str(loader), *arguments], env={}, capture_output=True, text=True, timeout=300
    )
