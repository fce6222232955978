"""Which toolchains there are, and that a bad one costs itself only."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from collage_engine.records.errors import UsageError
from collage_engine.records.toolchain import ToolchainState
from collage_engine.toolchains import registry


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))
    registry.forget_probes()
    yield
    registry.forget_probes()


def test_every_name_has_its_folder() -> None:
    assert registry.all_names()[:4] == ("tvm", "onnxruntime", "onednn", "openvino")
    for name, target in registry.TOOLCHAINS.items():
        assert target.startswith(f"collage_engine.toolchains.{name}.")


def test_unknown_name_lists_the_known_ones() -> None:
    for ask in (registry.get, registry.probe, lambda n: registry.probe_all([n])):
        with pytest.raises(UsageError, match=r"tensorflow.*known are tvm, onnxruntime, "):
            ask("tensorflow")


def test_classes_are_imported_when_asked_for() -> None:
    toolchain = registry.get("onednn")
    assert toolchain.name == "onednn"
    assert registry.get("onednn") is toolchain


def test_folder_hash_changes_with_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "someones_toolchain"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "toolchain.py").write_text("class T:\n    depends = ('json.decoder',)\n")
    (package / "kernel.cc").write_text("int f();")
    monkeypatch.syspath_prepend(str(tmp_path))
    cls = importlib.import_module("someones_toolchain.toolchain").T
    first = registry.folder_hash(cls)
    registry.folder_hash.cache_clear()
    (package / "notes.txt").write_text("not a source")
    assert registry.folder_hash(cls) == first
    registry.folder_hash.cache_clear()
    (package / "kernel.cc").write_text("int g();")
    assert registry.folder_hash(cls) != first
    registry.folder_hash.cache_clear()
    del sys.modules["someones_toolchain.toolchain"]


PROBES = {
    "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed.*signal 11"),
    "hangs": ("import time; time.sleep(60)", "longer than 2 s"),
    "raises": ("raise OSError('libfoo.so: not found')", "OSError: libfoo.so: not found"),
    "exits": ("import os; os._exit(0)", "printed no state"),
}


@pytest.mark.parametrize("name", PROBES)
def test_probe_that_fails_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    body, reason = PROBES[name]
    (tmp_path / f"{name}_toolchain.py").write_text(
        f"class T:\n    def probe(self):\n        {body}\n"
    )
    monkeypatch.setitem(registry.TOOLCHAINS, name, f"{name}_toolchain:T")
    child = tmp_path / "child.py"
    child.write_text(
        "import sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import collage_engine.toolchains.registry as r\n"
        "r.TOOLCHAINS[sys.argv[2]] = sys.argv[2] + '_toolchain:T'\n"
        "r._main(sys.argv[2])\n"
    )

    def command(chosen: str) -> list[str]:
        return [sys.executable, str(child), str(tmp_path), chosen]

    monkeypatch.setattr(registry, "_probe_command", command)
    state = registry.probe(name, timeout_s=2.0)
    assert not state.available
    assert state.reason is not None
    assert re.search(reason, state.reason)


def test_probe_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(name: str, timeout_s: float) -> ToolchainState:
        asked.append(name)
        return ToolchainState(name=name, available=True)

    monkeypatch.setattr(registry, "_probe_in_child", answer)
    states = registry.probe_all()
    assert [s.name for s in states] == list(registry.all_names())
    assert [s.targets for s in states] == [registry.targets_of(s.name) for s in states]
    registry.probe_all(["onednn", "tvm"])
    assert sorted(asked) == sorted(registry.all_names())


def test_targets_are_known_without_importing_a_toolchain() -> None:
    for name in registry.all_names():
        assert registry.targets_of(name) == registry.get(name).targets
    assert registry.names_for("cuda") == ("tvm", "cublas", "cudnn", "cutlass", "tensorrt")
    assert "cublas" not in registry.names_for("cpu")
