"""Which toolchains there are, and that a bad one costs itself only."""

from __future__ import annotations

import importlib
import math
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collage_engine.records.toolchain import ToolchainState
from collage_engine.support.errors import UsageError
from collage_engine.support.time_limits import Flag
from collage_engine.toolchains import registry
from collage_engine.toolchains.sources import source_hash


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))
    registry.forget_probes()
    yield
    registry.forget_probes()


def test_unknown_name_lists_the_known_ones() -> None:
    for ask in (registry.get, registry.probe, lambda n: registry.probe_all([n])):
        with pytest.raises(UsageError, match=r"tensorflow.*known are tvm, onnxruntime, "):
            ask("tensorflow")


def test_source_hash_changes_with_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "someones_toolchain"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "toolchain.py").write_text("class T:\n    depends = ('json.decoder',)\n")
    (package / "kernel.cc").write_text("int f();")
    monkeypatch.syspath_prepend(str(tmp_path))
    cls = importlib.import_module("someones_toolchain.toolchain").T
    first = source_hash(cls)
    source_hash.cache_clear()
    (package / "notes.txt").write_text("not a source")
    assert source_hash(cls) == first
    source_hash.cache_clear()
    (package / "kernel.cc").write_text("int g();")
    assert source_hash(cls) != first
    source_hash.cache_clear()
    del sys.modules["someones_toolchain.toolchain"]


FAKE = """
from collage_engine.records.toolchain import ToolchainAbout
from tests.support.plain_toolchain import PlainToolchain
class T(PlainToolchain):
    about = ToolchainAbout(name="{name}", title="Fake", licence="MIT")
"""


PROBES = {
    "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
    "hangs": ("import time; time.sleep(60)", "did nothing for longer than 1 s"),
    "works_for_ever": ("while True: pass", "took longer than 2 s"),
    "raises": ("raise OSError('libfoo.so: not found')", "OSError: libfoo.so: not found"),
    "exits": ("import os; os._exit(0)", "ended with status 0"),
    "says_nothing": ("return None", "AttributeError|TypeError"),
    "speaks_for_tvm": (
        "from collage_engine.records.toolchain import ToolchainState\n"
        "        return ToolchainState(name='tvm', available=False, reason='broken')",
        "speaks for 'tvm'",
    ),
}
CHILD = """
import collage_engine.toolchains.registry as r
def probe(name):
    r.TOOLCHAINS[name] = name + "_toolchain:T"
    return r.probe_here(name)
"""


@pytest.mark.parametrize("name", PROBES)
def test_probe_that_fails_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    body, reason = PROBES[name]
    (tmp_path / f"{name}_toolchain.py").write_text(
        FAKE.format(name=name) + f"    def probe(self):\n        {body}\n"
    )
    (tmp_path / "fake_child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(registry.TOOLCHAINS, name, f"{name}_toolchain:T")
    monkeypatch.setattr(registry, "_JOB", "fake_child:probe")
    if name == "hangs":
        monkeypatch.setattr(registry, "IDLE_S", 1.0)
    if name == "works_for_ever":
        monkeypatch.setattr(registry, "WORK_S", 2.0)
    state = registry.probe(name)
    assert not state.available
    assert state.reason is not None
    assert re.search(reason, state.reason)


def test_who_is_not_ready_in_time_is_left_out_and_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compiling runtimes takes long on a new machine; a run with little time does without them."""
    asked: list[tuple[str, float]] = []

    def answer(name: str, ready_by: float, stop: Flag) -> ToolchainState:
        asked.append((name, ready_by))
        compiled = name not in ("onednn", "openvino")
        if not compiled and ready_by < math.inf:
            time.sleep(max(0.0, ready_by - time.monotonic()))
            return ToolchainState(name=name, available=False, reason="probing took too long")
        return ToolchainState(name=name, available=True)

    monkeypatch.setattr(registry, "_probe_in_child", answer)
    ready_by = time.monotonic() + 2.0
    states = registry.probe_all(ready_by=ready_by, waited_for={"openvino"})
    by_name = {state.name: state for state in states}
    assert by_name["tvm"].available and by_name["openvino"].available
    assert by_name["onednn"].late
    assert all(moment == ready_by for name, moment in asked if name != "openvino")
    assert dict(asked)["openvino"] == math.inf, "it is waited for"
    later = {state.name: state for state in registry.probe_all()}
    assert later["onednn"].available, "it is not remembered as missing"
    assert all(state.available for state in later.values())
