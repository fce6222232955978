"""Building C++ runtimes: what is missing is said, what is there is built once."""

from __future__ import annotations

import ctypes
import shutil
import stat
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from collage_engine.lowering import link
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains import registry
from collage_engine.toolchains.onednn.toolchain import OneDnnToolchain
from collage_engine.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
from collage_engine.toolchains.runtime import builder

TRIVIAL = '#include <cstdio>\nextern "C" int answer() { return 42; }\n'


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> builder.RuntimeSource:
    monkeypatch.delenv("COLLAGE_BUILD_DIR", raising=False)
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "main.cc").write_text(TRIVIAL)
    return builder.RuntimeSource("toy", folder / "main.cc", 1, "1.0")


def fake_compiler(folder: Path, body: str) -> Path:
    path = folder / "fake-cxx"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_toolchain_without_compiler_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("COLLAGE_BUILD_DIR", raising=False)
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))
    for toolchain in (OnnxRuntimeToolchain(), OneDnnToolchain()):
        monkeypatch.setattr(builder, "is_registered", lambda kind: False)
        state = toolchain.probe()
        assert not state.available
        assert state.reason is not None and "no C++ compiler found" in state.reason
        assert registry.described(state, toolchain.about).install == state.install
        assert state.install is not None and "install g++" in state.install


def test_missing_package_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    for toolchain, package, packages in (
        (OnnxRuntimeToolchain(), "onnxruntime", "onnxruntime-gpu or onnxruntime"),
        (OneDnnToolchain(), "onednn-cpu-gomp", "onednn-cpu-gomp"),
    ):
        state = toolchain.probe()
        assert not state.available
        assert state.reason == f"the package {packages} is not installed"
        assert package in (registry.described(state, toolchain.about).install or "")


def test_built_once_and_named_by_its_sources(
    source: builder.RuntimeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = builder.build(source)
    assert runtime.name == f"lib{source.kind}.so"
    dynamic = subprocess.run(
        ["readelf", "-d", str(runtime)], capture_output=True, text=True, check=True
    ).stdout
    assert f"soname: [{runtime.name}]" in dynamic
    assert "[$ORIGIN]" in dynamic
    assert "libtvm_ffi.so" in dynamic
    monkeypatch.setattr(builder, "find_compiler", lambda: pytest.fail("compiled again"))
    assert builder.build(source) == runtime


def test_a_wheel_carries_it_for_machines_without_a_compiler(
    source: builder.RuntimeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = builder.build(source)
    carried, content = tmp_path / "carried", made.read_bytes()
    shutil.copytree(made.parent, carried / made.parent.name)
    shutil.rmtree(builder.build_folder())
    monkeypatch.setattr(builder, "CARRIED", carried)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    library = tmp_path / "libneeded.so"
    library.write_bytes(b"")
    beside = replace(source, beside=(("libneeded.so.1", library),))
    with pytest.raises(ToolchainError, match="no C\\+\\+ compiler"):
        builder.build(beside)  # that rests on another library
    found = builder.build(source)
    assert found.name == made.name and found.is_relative_to(builder.build_folder())
    assert found.read_bytes() == content
    with pytest.raises(ToolchainError, match="no C\\+\\+ compiler"):
        builder.build(replace(source, library_version="2.0"))


def test_without_a_linker_the_package_ziglang_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, other = tmp_path / "answer.bin", tmp_path / "libother.so"
    held.write_bytes((42).to_bytes(4, "little"))
    link.link_shared(str(other), [str(held)], [])  # by the system's linker
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(other)), "answer").value == 42
    zig = tmp_path / "zig"
    zig.write_text(f'#!/bin/sh\nshift\nexec {shutil.which("ld.bfd")} "$@"\n')
    zig.chmod(0o755)
    found = link.find_in_wheel
    monkeypatch.setattr(link, "find_in_wheel", lambda package, name: zig)
    assert link.linker() == (shutil.which("ld.bfd"),)
    monkeypatch.setattr(link.shutil, "which", lambda name: None)
    assert link.linker() == (str(zig), "ld.lld")
    made = tmp_path / "made.so"
    link.link_shared(str(made), [str(held)], [str(other)])
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(made)), "answer").value == 42
    dynamic = subprocess.run(
        ["readelf", "-d", str(made)], capture_output=True, text=True, check=True
    ).stdout
    for needed in ("libother.so", "libm.so.6", "libc.so.6", "$ORIGIN"):
        assert needed in dynamic
    with pytest.raises(RuntimeError, match=r"gone\.o"):
        link.link_shared(str(made), [str(tmp_path / "gone.o")], [])
    monkeypatch.setattr(link, "find_in_wheel", lambda package, name: found("no-such-package", name))
    with pytest.raises(builder.CannotBuild, match="pip install ziglang"):
        link.linker()


def test_another_environment_of_the_machine_uses_it_with_its_own_libraries(
    source: builder.RuntimeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(environment: str, content: str = "int f(void);\n") -> builder.RuntimeSource:
        folder = tmp_path / environment / "include" / "far"
        folder.mkdir(parents=True)
        (folder / "far.h").write_text(content)
        (folder.parent / "libfar.so.1").write_bytes(b"")
        beside = (("libfar.so.1", folder.parent / "libfar.so.1"),)
        return replace(source, includes=(folder.parent,), beside=beside)

    one = builder.build(of("one"))
    shutil.rmtree(tmp_path / "one")
    with monkeypatch.context() as patch:
        patch.setattr(builder, "_compile", lambda *a: pytest.fail("compiled again"))
        assert builder.build(of("two")) == one
        link = one.parent / "libfar.so.1"
        assert link.readlink() == tmp_path / "two" / "include" / "libfar.so.1"
        patch.setenv("CXX", "no-such-compiler")
        patch.setenv("PATH", "")
        assert builder.build(of("three")) == one
        assert link.readlink() == tmp_path / "three" / "include" / "libfar.so.1"
    assert str(tmp_path / "one").encode() not in one.read_bytes()
    assert builder.build(of("four", "int g(void, int);\n")).parent != one.parent


def test_compile_error_is_one_sentence_and_leaves_nothing(source: builder.RuntimeSource) -> None:
    source.main.write_text("int f() { return undeclared; }\n")
    with pytest.raises(ToolchainError, match=r"toy runtime does not compile: .*undeclared"):
        builder.build(source)
    left = [p for p in builder.cache_folder().rglob("*") if p.is_file() and p.name != "lock"]
    assert left == []


def test_unwritable_cache_is_said(
    source: builder.RuntimeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("COLLAGE_BUILD_DIR", raising=False)
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(builder.CannotBuild, match="cannot be kept in") as caught:
        builder.build(source)
    assert "COLLAGE_CACHE_DIR" in caught.value.advice


def test_a_compiler_that_is_killed_says_nothing_of_the_runtime(
    source: builder.RuntimeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = '[ "$1" = --version ] && exec g++ --version\nkill -9 $$'
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, body)))
    with pytest.raises(builder.CompilerKilled, match="was killed before it was done"):
        builder.build(source)
    monkeypatch.delenv("CXX")
    assert builder.build(source).exists()


def test_builders_at_the_same_time_compile_once(
    source: builder.RuntimeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    compiler = fake_compiler(
        tmp_path,
        f'if [ "$1" = --version ]; then echo fake; else echo x >> {log}; sleep 0.3; '
        'while [ "$1" != -o ]; do shift; done; echo library > "$2"; fi',
    )
    monkeypatch.setenv("CXX", str(compiler))
    script = f"""
        from pathlib import Path
        from collage_engine.toolchains.runtime import builder
        source = builder.RuntimeSource("toy", Path({str(source.main)!r}), 1, "1.0")
        assert builder.build(source).read_text() == "library\\n"
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    children = [subprocess.Popen(command) for _ in range(3)]
    assert [c.wait() for c in children] == [0, 0, 0]
    assert log.read_text() == "x\n"


def test_file_not_in_the_wheel_is_said() -> None:
    with pytest.raises(ToolchainError, match=r"carries no libnothing\.so"):
        builder.find_in_wheel("onnxruntime", "libnothing.so")
    with pytest.raises(ToolchainError, match="no-such-package is not installed"):
        builder.find_in_wheel("no-such-package", "x")
