"""What is read of this machine.

Limits of control groups, in both versions of the kernel's interface.

Strict runs refuse a busy machine.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from collage_engine.machine import device
from collage_engine.records.placement import MachineState
from collage_engine.records.settings import RunSettings
from collage_engine.run.run import require_quiet_machine
from collage_engine.support.errors import MeasureError


def test_caches_are_read_and_instruction_caches_left_out(tmp_path):
    for number, (level, kind, size) in enumerate(
        [(1, "Data", "48K"), (1, "Instruction", "64K"), (3, "Unified", "32M"), (2, "?", "?")]
    ):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        (folder / "level").write_text(f"{level}\n")
        (folder / "type").write_text(kind + "\n")
        (folder / "size").write_text(size + "\n")
    found = device._caches(tmp_path)
    assert found == ((1, "Data", 48 << 10), (1, "Instruction", 64 << 10), (3, "Unified", 32 << 20))


def test_this_machine():
    cores = device.physical_cores()
    assert 1 <= cores <= len(device.allowed_processors())
    assert device.last_level_cache_bytes() >= device.cache_bytes(1, 0)
    record = device.device()
    assert record.name == "cpu" and record.threads == cores
    assert record.fingerprint == device.fingerprint() and len(record.fingerprint) == 16


def test_fingerprint_is_the_same_in_another_process_and_knows_no_host_name():
    code = "from collage_engine.machine.device import fingerprint; print(fingerprint())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
    # Two fresh ones: a runtime that another test loaded here may have bound this one's threads.
    one, other = (
        subprocess.check_output([sys.executable, "-c", code], env=env, text=True).strip()
        for _ in range(2)
    )
    assert one == other != ""
    assert os.uname().nodename not in str(device.processor()).split()


def fake_ticks(monkeypatch, busy: int, steal: int):
    looks = iter([(10.0, 1.0, 0.0), (11.0, 1.0 + busy / 100, steal / 100)])
    monkeypatch.setattr(device, "_processor_seconds", lambda: next(looks))
    return device.busy(0.0)


def test_busy(monkeypatch):
    assert fake_ticks(monkeypatch, 5, 0) is None
    sentence = fake_ticks(monkeypatch, 63, 0)
    assert sentence is not None and "other programs use 63 %" in sentence
    sentence = fake_ticks(monkeypatch, 0, 40)
    assert sentence is not None and "other guests of the host take 40 %" in sentence


def test_cgroup_quota_is_the_least_along_the_path(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    root = tmp_path / "fs"
    (root / "a" / "b").mkdir(parents=True)
    assert device.processor_quota(root, own) is None
    (root / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert device.processor_quota(root, own) is None
    (root / "a" / "cpu.max").write_text("150000 100000\n")
    assert device.processor_quota(root, own) == 1.5
    (root / "a" / "b" / "cpu.max").write_text("400000 100000\n")
    assert device.processor_quota(root, own) == 1.5
    assert device.processor_quota(root, tmp_path / "none") is None


def test_memory_is_what_the_tightest_group_has_left(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    root = tmp_path / "fs"
    inner, outer = root / "a" / "b", root / "a"
    inner.mkdir(parents=True)
    whole, free = device.memory_bytes(root, own), device.available_bytes(root, own)
    assert whole > free > 0

    def limit(folder, most: str, used: int, cache: int) -> None:
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\nslab 1\n")

    limit(inner, "max", 10_000, 0)
    assert device.memory_bytes(root, own) == whole
    limit(inner, "9000", 3000, 1000)
    limit(outer, "8000", 7000, 500)
    assert device.memory_bytes(root, own) == 8000
    assert device.available_bytes(root, own) == 1500
    limit(outer, "8000", 9000, 0)
    assert device.available_bytes(root, own) == 0


BUSY = MachineState(at="", busy="the machine is busy: other programs use 40% of it; less certain")


def test_strict_runs_take_no_figures_beside_others() -> None:
    strict = RunSettings(strict=True)
    quiet = MachineState(at="")
    assert require_quiet_machine(quiet, strict) is quiet
    assert require_quiet_machine(BUSY, RunSettings()) is BUSY
    with pytest.raises(MeasureError, match="busy: other programs use 40% of it; with --strict no"):
        require_quiet_machine(BUSY, strict)
