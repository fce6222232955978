"""CUDA source in a packed blob of modules becomes cubin, everything else stays."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from collage_engine.lowering import cubin
from collage_engine.lowering.cubin import with_cubins
from collage_engine.support.errors import ToolchainError


def field(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


TABLE = struct.pack("<Q", 1) + field(b"add_kernel") + b"\x00" * 12
SOURCE = b'#include <x>\nextern "C" __global__ void add_kernel(float* a) {}\n'


def cuda_module(source: bytes = SOURCE) -> bytes:
    return field(b"cuda") + field(field(b"cuda") + TABLE + field(source))


def blob(*modules: bytes) -> bytes:
    tree = struct.pack("<QQQQ", 1, len(modules), 1, 0)
    body = tree + b"".join(modules)
    return struct.pack("<Q", len(body)) + body


def compile_(source: str, architecture: str) -> bytes:
    assert source.encode() == SOURCE
    return f"code for {architecture}".encode()


@pytest.fixture(autouse=True)
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_BUILD_DIR", str(tmp_path))
    monkeypatch.setattr(cubin, "nvrtc", lambda: [])
    monkeypatch.setattr(cubin, "by_nvrtc", compile_)


def test_source_becomes_cubin_in_place() -> None:
    before, after = field(b"first") + field(b"aaaa"), field(b"last") + field(b"zz")
    done = with_cubins(blob(before, cuda_module(), after), "sm_80")
    expected = field(b"cuda") + field(field(b"cubin") + TABLE + field(b"code for sm_80"))
    assert done == blob(before, expected, after)


def test_compiled_modules_and_bytes_that_look_alike_stay() -> None:
    compiled = field(b"cuda") + field(field(b"cubin") + TABLE + field(b"\x7fELF"))
    alike = field(b"weights") + field(field(b"cuda") + struct.pack("<Q", 1 << 40))
    assert with_cubins(blob(compiled, alike), "sm_80") == blob(compiled, alike)


def test_two_modules() -> None:
    done = with_cubins(blob(cuda_module(), cuda_module()), "sm_90a")
    assert done.count(b"code for sm_90a") == 2
    assert struct.unpack_from("<Q", done)[0] == len(done) - 8


def test_source_that_cannot_be_found_again_is_an_error() -> None:
    broken = field(b"cuda") + field(field(b"cuda") + TABLE + SOURCE)
    with pytest.raises(ToolchainError, match="cannot be found"):
        with_cubins(blob(broken), "sm_80")


def test_compiled_code_is_kept_between_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compile_now(source: str, architecture: str) -> bytes:
        compiled.append(architecture)
        return f"{source} for {architecture}".encode()

    library = tmp_path / "libnvrtc.so.13"
    library.write_bytes(b"1")
    monkeypatch.setattr(cubin, "nvrtc", lambda: [library])
    monkeypatch.setattr(cubin, "by_nvrtc", compile_now)
    for _ in range(2):
        assert cubin.compile_cubin("a", "sm_90a") == b"a for sm_90a"
    assert compiled == ["sm_90a"]
    assert cubin.compile_cubin("a", "sm_80") == b"a for sm_80"
    library.write_bytes(b"another release")
    cubin.compile_cubin("a", "sm_90a")
    assert compiled == ["sm_90a", "sm_80", "sm_90a"]
    assert not list(tmp_path.rglob(".cubin-*"))
