"""What probing found is taken from an earlier process only while what it rests on is unchanged."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from collage_engine.records.toolchain import ToolchainState
from collage_engine.toolchains import probe_memory, registry

NAME = "fake"
CHILD = """
import collage_engine.toolchains.registry as r
r.TOOLCHAINS["fake"] = "fake_toolchain:T"
def probe(name):
    with open({asked!r}, "a") as file:
        file.write("x")
    return r.probe_here(name)
"""
TOOLCHAIN = """
import fake_library
from collage_engine.records.toolchain import ToolchainAbout, ToolchainState
from tests.support.plain_toolchain import PlainToolchain
class T(PlainToolchain):
    about = ToolchainAbout(name="fake", title="Fake", licence="MIT")
    def probe(self):
        return ToolchainState(name="fake", available={available}, version=fake_library.VERSION)
"""


class Machine:
    """A toolchain in a folder, and how often it was probed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "asked").write_text("")
        (folder / "fake_child.py").write_text(CHILD.format(asked=str(folder / "asked")))

    @property
    def asked(self) -> int:
        return len((self.folder / "asked").read_text())

    def install(self, *, available: bool = True) -> None:
        (self.folder / "fake_toolchain.py").write_text(TOOLCHAIN.format(available=available))
        (self.folder / "fake_library.py").write_text("VERSION = '1.0'\n")

    def ask(self, *, anew: bool = False) -> ToolchainState:
        """As a new process would."""
        registry.forget_probes()
        return registry.probe_all([NAME], anew=anew)[0]

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "cache" / "probes").glob("*"))

    @property
    def file(self) -> Path:
        (file,) = self.files
        return file

    def age(self, seconds: float) -> None:
        """As if it had been kept so long ago."""
        kept = msgspec.json.decode(self.file.read_bytes())
        self.file.write_bytes(msgspec.json.encode(kept | {"at": time.time() - seconds}))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(registry.TOOLCHAINS, NAME, "fake_toolchain:T")
    monkeypatch.setattr(registry, "_JOB", "fake_child:probe")
    monkeypatch.setattr(registry, "_probed", {})
    made = Machine(tmp_path)
    made.install()
    return made


def test_a_second_process_does_not_probe_again(machine: Machine) -> None:
    first = machine.ask()
    assert first.available and machine.asked == 1
    assert machine.ask() == first
    assert machine.asked == 1
    assert machine.ask(anew=True) == first
    assert machine.asked == 2


def test_a_probe_that_hangs_is_not_waited_for_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TOOLCHAIN.format(available=True).replace(
        "        return", "        __import__('time').sleep(60)\n        return"
    )
    (machine.folder / "fake_toolchain.py").write_text(text)
    monkeypatch.setattr(registry, "IDLE_S", 1.0)
    for anew, asked in ((False, 1), (False, 1), (True, 2)):
        state = machine.ask(anew=anew)
        assert state.fault and "did nothing for longer than 1 s" in (state.reason or "")
        assert machine.asked == asked
    machine.install()
    assert machine.ask(anew=True).available


def test_other_surroundings_are_probed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.ask()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    machine.ask()
    assert machine.asked == 2
    packages = machine.folder / "packages"
    packages.mkdir()
    monkeypatch.setattr(probe_memory, "_package_folders", lambda: [str(packages)])
    machine.ask()
    (packages / "something-1.0.dist-info").mkdir()
    os.utime(packages, ns=(1, 1))
    machine.ask()
    assert machine.asked == 4
    machine.ask()
    assert machine.asked == 4


def test_what_is_missing_is_asked_again_soon(machine: Machine) -> None:
    machine.install(available=False)
    machine.ask()
    machine.ask()
    assert machine.asked == 1
    machine.age(probe_memory.JOB_S + 1)
    machine.ask()
    assert machine.asked == 2
    machine.age(-60)  # kept in the future: the clock was set back
    machine.ask()
    assert machine.asked == 3


def test_a_crash_is_not_kept(machine: Machine) -> None:
    whole = (machine.folder / "fake_library.py").read_text()
    (machine.folder / "fake_library.py").write_text("import os; os.kill(os.getpid(), 11)\n")
    assert "ended the process that probes it" in (machine.ask().reason or "")
    assert not machine.files
    (machine.folder / "fake_library.py").write_text(whole)
    assert machine.ask().available
