"""One process, one copy of each runtime and library, whoever brings it first."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest

from collage_engine.toolchains import registry
from collage_engine.toolchains.runtime import builder
from tests.support.command import python

PREAMBLE = """
    import ctypes, sys
    import numpy as np
    from collage_engine.toolchains import registry
    from collage_engine.toolchains.runtime import builder
    from tests.support.toolchain_cases import (
        Net,
        default_instance,
        error,
        imported,
        load_again,
        reference,
        run,
        whole,
    )

    toolchain = registry.get(NAME)
    kind = toolchain.source().kind

    def works():
        net = Net()
        model = net.model(net.add("MatMul", net.input(3, 8), net.randn(8, 4)))
        graph = imported(model)
        function = whole(graph, default_instance(toolchain))
        module = toolchain.compile(function)
        assert module.kind == kind
        feeds = graph.random_inputs(0)
        truth = reference(model, function, feeds)[0]
        for each in (module, load_again(module)):
            assert error(run(each, function, feeds)[0], truth) < 1e-5

    def loaded(part):
        return {line.split()[-1] for line in open("/proc/self/maps") if part in line}
"""


@pytest.fixture(params=["onnxruntime", "onednn", "openblas"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def artifact(name: str, tmp_path: Path) -> Path:
    """A folder as an artifact has it: the runtime and the library it needs, side by side."""
    toolchain = registry.get(name)
    folder = tmp_path / "artifact"
    folder.mkdir()
    for library in toolchain.runtime_libraries():
        (folder / library.name).write_bytes(Path(library.file).read_bytes())
    return folder


def in_process(name: str, body: str, *arguments: str) -> None:
    code = textwrap.dedent(PREAMBLE).replace("NAME", repr(name)) + textwrap.dedent(body)
    done = python(code, *arguments)
    assert done.returncode == 0, done.stderr


def test_engine_uses_the_runtime_that_an_artifact_brought(name: str, artifact: Path) -> None:
    body = """
        import tvm_ffi
        from pathlib import Path
        folder = Path(sys.argv[1])
        ctypes.CDLL(str(folder / f"lib{kind}.so"))
        works()
        assert loaded(kind) == {str(folder / f"lib{kind}.so")}
        for library in ("libdnnl", "libonnxruntime.so", "libscipy_openblas.so"):
            assert all(path.startswith(str(folder)) for path in loaded(library))
    """
    in_process(name, body, str(artifact))


def test_two_artifacts_use_the_runtime_that_the_engine_brought(
    name: str, artifact: Path, tmp_path: Path
) -> None:
    """``model.so`` names the runtime as NEEDED; its SONAME finds the copy that is loaded."""
    runtime = f"lib{registry.get(name).source().kind}.so"
    source = tmp_path / "model.cc"
    source.write_text('extern "C" int model() { return 7; }\n')
    compiler = builder.find_compiler()
    for number in (1, 2):
        folder = artifact if number == 1 else artifact.with_name("second")
        if number == 2:
            folder.mkdir()
            for file in artifact.iterdir():
                (folder / file.name).write_bytes(file.read_bytes())
        subprocess.run(
            [
                *compiler.command,
                "-shared",
                "-fPIC",
                str(source),
                "-o",
                str(folder / "model.so"),
                "-Wl,--no-as-needed",
                str(folder / runtime),
                "-Wl,-rpath,$ORIGIN",
                "-Wl,--allow-shlib-undefined",
            ],
            check=True,
        )
    body = """
        works()
        before = loaded(kind), loaded("libdnnl"), loaded("libonnxruntime.so")
        for folder in sys.argv[1:]:
            assert ctypes.CDLL(f"{folder}/model.so").model() == 7
        works()
        assert (loaded(kind), loaded("libdnnl"), loaded("libonnxruntime.so")) == before
        assert len(before[0]) == 1
    """
    in_process(name, body, str(artifact), str(artifact.with_name("second")))


def test_artifact_needs_nothing_from_the_engines_folders(name: str, artifact: Path) -> None:
    """Only system libraries, tvm-ffi and its own folder."""
    runtime = artifact / f"lib{registry.get(name).source().kind}.so"
    needed = subprocess.run(
        ["readelf", "-d", str(runtime)], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split("[")[1].rstrip("]") for line in needed.splitlines() if "(NEEDED)" in line}
    beside = {p.name for p in artifact.iterdir()}
    system = {
        "libtvm_ffi.so",
        "libstdc++.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "libc.so.6",
        "libdl.so.2",
        "ld-linux-x86-64.so.2",
    }
    assert names <= beside | system
    assert str(builder.cache_folder()) not in needed
