"""What is read of this machine."""

from __future__ import annotations

import os
import subprocess
import sys

from collage_engine.machine import device


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
