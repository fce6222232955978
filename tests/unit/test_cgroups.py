"""Limits of control groups, in both versions of the kernel's interface."""

from __future__ import annotations

from collage_engine.machine import device


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


def test_the_first_version_has_a_folder_for_each_controller(tmp_path):
    own, root = tmp_path / "own", tmp_path / "fs"
    own.write_text("4:memory:/x\n3:cpu,cpuacct:/x\n")
    figures = {
        "cpu,cpuacct/x/cpu.cfs_quota_us": "50000",
        "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
        "memory/x/memory.limit_in_bytes": "4000",
        "memory/x/memory.usage_in_bytes": "3000",
        "memory/x/memory.stat": "total_inactive_file 200\n",
    }
    for name, text in figures.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    assert device.processor_quota(root, own) == 0.5
    assert device.memory_bytes(root, own) == 4000
    assert device.available_bytes(root, own) == 1200
