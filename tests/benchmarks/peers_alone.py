"""One toolchain alone on a whole model, as an artifact: what its users would have without us.

``python -m tests.benchmarks.peers_alone MODEL.onnx INSTANCE THREADS SAMPLE_ARTIFACT OUT``

The whole model is one partition of that toolchain instance; inputs and true outputs are those of
an artifact of the same model. Prints nothing; the last line of standard error says why not.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.build.build import build_cover, write_module
from collage_engine.lowering.npz import read_npz
from collage_engine.model.importer import import_model
from collage_engine.records.errors import CollageError, ToolchainError
from collage_engine.records.toolchain import Target
from collage_engine.toolchains.registry import get
from tests.support.covers import candidate_on


def main(model_path: str, wanted: str, threads: int, sample: Path, out: Path) -> None:
    toolchain = get(wanted.partition("[")[0])
    found = [i for i in toolchain.instances(Target.cpu(threads), "float32") if i.id == wanted]
    if not found:
        raise ToolchainError(f"there is no instance {wanted}")
    model = import_model(model_path, {})
    for index in model.graph.operators:
        reason = toolchain.supports(model.graph, index, found[0])
        if reason is not None:
            op = model.graph.nodes[index].op
            raise ToolchainError(f"cannot run {op}: {reason.removeprefix(f'{op}: ')}")
    cover = [candidate_on(found[0], tuple(range(len(model.graph.operators))))]
    contents = ArtifactContents(
        inputs=read_npz(sample / "sample_input.npz", {n: k.dtype for n, k in model.inputs}),
        outputs=read_npz(sample / "sample_output.npz", {n: k.dtype for n, k in model.outputs}),
        tolerance=1e-3,
    )
    with tempfile.TemporaryDirectory() as scratch:
        write_module(build_cover(model, cover), Path(scratch) / "module")
        write_artifact(model, Path(scratch) / "module", out, contents)


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5]))
    except CollageError as failure:
        sys.exit(str(failure))
