"""How test files are shared between worker processes, and what a crashed worker costs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HOOKS = """
from tests.conftest import pytest_xdist_auto_num_workers, pytest_xdist_make_scheduler
"""
TESTS = """
import os, pytest

@pytest.mark.parametrize("number", range(4))
def test_some(number):
    {act}
    print(os.getpid(), flush=True)
"""


def run(folder: Path, files: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as this project does in a folder of test files, each with what its tests do."""
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = -p xdist -n auto --max-worker-restart 9\n"
    )
    (folder / "conftest.py").write_text(HOOKS)
    for name, act in files.items():
        (folder / f"test_{name}.py").write_text(TESTS.format(act=act))
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-rfP",
            "--color=no",
            "-p",
            "no:cacheprovider",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=280,  # a worker that waits for ever would take longer
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


needs_two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor only")


@needs_two
def test_files_stay_whole_and_are_shared(tmp_path):
    done = run(tmp_path, {name: "import time; time.sleep(0.1)" for name in "abcd"})
    assert done.returncode == 0 and "16 passed" in done.stdout, done.stdout
    pids = re.findall(r"^(\d+)$", done.stdout, re.M)
    assert len(pids) == 16 and len(set(pids)) >= 2
    assert all(pids.count(pid) % 4 == 0 for pid in set(pids)), "a file was torn apart"


@needs_two
def test_a_crash_is_a_failure_and_all_other_tests_run_once(tmp_path):
    first, last = "number == 0 and os.abort()", "number == 3 and os.abort()"
    done = run(tmp_path, {"a": "pass", "b": first, "c": "pass", "d": last})
    assert done.returncode == 1
    assert "2 failed, 14 passed" in done.stdout, done.stdout
    for crashed in ("test_b.py::test_some[0]", "test_d.py::test_some[3]"):
        assert f"crashed while running '{crashed}'" in done.stdout


def test_files_that_are_named_run_in_one_process(tmp_path):
    done = run(tmp_path, {"a": "pass", "b": "pass"}, "test_a.py", "test_b.py")
    assert "8 passed" in done.stdout and "workers" not in done.stdout
