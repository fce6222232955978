"""What probing found is taken from an earlier process only while what it rests on is unchanged."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
import pytest

from collage_engine.records.toolchain import ToolchainState
from collage_engine.toolchains import probe_memory, registry
from collage_engine.toolchains.probe_process import ProbeLimits

NAME = "fake"
CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import collage_engine.toolchains.registry as r
r.TOOLCHAINS["fake"] = "fake_toolchain:T"
r._main("fake")
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

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="what a process has loaded is known on Linux only"
)


class Machine:
    """A toolchain in a folder, and how often it was probed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked = 0

    def command(self, name: str) -> list[str]:
        """Of a child that probes; it is counted."""
        self.asked += 1
        return [sys.executable, str(self.folder / "child.py"), str(self.folder)]

    def install(self, *, available: bool = True, version: str = "1.0") -> None:
        (self.folder / "fake_toolchain.py").write_text(TOOLCHAIN.format(available=available))
        (self.folder / "fake_library.py").write_text(f"VERSION = {version!r}\n")

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
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(registry.TOOLCHAINS, NAME, "fake_toolchain:T")
    made = Machine(tmp_path)
    monkeypatch.setattr(registry, "_probe_command", made.command)
    monkeypatch.setattr(registry, "_probed", {})
    made.install()
    return made


def test_a_second_process_does_not_probe_again(machine: Machine) -> None:
    first = machine.ask()
    assert first.available and machine.asked == 1
    assert machine.ask() == first
    assert machine.asked == 1
    assert machine.ask(anew=True) == first
    assert machine.asked == 2


def test_a_probe_that_hangs_is_not_waited_for_again(machine: Machine) -> None:
    text = TOOLCHAIN.format(available=True).replace(
        "        return", "        __import__('time').sleep(60)\n        return"
    )
    (machine.folder / "fake_toolchain.py").write_text(text)
    limits = ProbeLimits(idle_s=1.0)
    for anew, asked in ((False, 1), (False, 1), (True, 2)):
        registry.forget_probes()
        (state,) = registry.probe_all([NAME], limits, anew=anew)
        assert state.fault and "did nothing for longer than 1 s" in (state.reason or "")
        assert machine.asked == asked
    machine.age(probe_memory.HERE_SECONDS + 1)
    machine.install()
    assert machine.ask().available


def test_a_library_that_is_gone_is_probed(machine: Machine) -> None:
    machine.ask()
    (machine.folder / "fake_library.py").unlink()
    state = machine.ask()
    assert not state.available and "fake_library" in (state.reason or "")


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


def test_two_environments_in_turn_are_probed_once_each(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("one", "other", "one", "other"):
        monkeypatch.setenv("PYTHONPATH", str(machine.folder / path))
        machine.ask()
    assert machine.asked == 2 and len(machine.files) == 2
    weeks_ago = time.time() - probe_memory.HERE_SECONDS - 1
    for file in machine.files:
        os.utime(file, (weeks_ago, weeks_ago))
    monkeypatch.setenv("PYTHONPATH", str(machine.folder / "third"))
    machine.ask()
    assert len(machine.files) == 1, "what is too old to be taken goes"


def test_what_is_missing_is_asked_again_soon(machine: Machine) -> None:
    machine.install(available=False)
    machine.ask()
    machine.ask()
    assert machine.asked == 1
    machine.age(probe_memory.MISSING_SECONDS + 1)
    machine.ask()
    assert machine.asked == 2
    machine.age(-60)  # kept in the future: the clock was set back
    machine.ask()
    assert machine.asked == 3


def test_a_crash_is_not_kept(machine: Machine) -> None:
    whole = (machine.folder / "fake_library.py").read_text()
    (machine.folder / "fake_library.py").write_text("import os; os.kill(os.getpid(), 11)\n")
    assert "crashed" in (machine.ask().reason or "")
    assert not machine.files
    (machine.folder / "fake_library.py").write_text(whole)
    assert machine.ask().available
