"""What lies in the user's working folder is none of our modules, whatever its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage_engine.machine import cuda
from collage_engine.machine.worker import Worker


@pytest.fixture(autouse=True)
def crowded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of files named as modules that every child imports."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("json", "numpy", "msgspec", "tvm", "importlib_metadata"):
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))


def test_a_worker_loads_the_installed_modules() -> None:
    with Worker("tests.support.worker_targets:echo") as worker:
        assert worker.call(3) == 3


def test_the_driver_is_asked_by_our_own_module() -> None:
    cuda.cuda_probe.cache_clear()
    assert "wrong module" not in (cuda.cuda_probe().reason or "")
    cuda.cuda_probe.cache_clear()
