"""TVM's interface imports PyTorch wherever it is installed; our processes do without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.artifact.loader import run_artifact
from collage_engine.machine.hidden_imports import hidden
from collage_engine.machine.worker import Worker

IMPORTED = "imported.txt"


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of this name which child processes find; it notes that it was imported."""
    package = tmp_path / "torch"
    package.mkdir()
    note = f"__import__('pathlib').Path({str(tmp_path / IMPORTED)!r}).write_text('')\nhere = True\n"
    (package / "__init__.py").write_text(note)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / IMPORTED


def import_both(_: object) -> tuple[bool, bool]:
    """Import TVM, then PyTorch, in a child; whether the first brought the second, and its own."""
    import tvm

    brought = "torch" in sys.modules
    import torch

    return brought and bool(tvm), torch.here


def test_a_child_imports_tvm_alone_and_pytorch_when_it_is_asked_for(torch: Path) -> None:
    with Worker(f"{__name__}:import_both", name="test") as worker:
        assert worker.call(None) == (False, True)
    assert torch.exists()


def test_an_artifact_that_is_run_as_a_program_imports_no_pytorch(torch: Path) -> None:
    code = (
        "import runpy, sys; sys.argv[:] = ['run_artifact.py', '--help']\n"
        f"try: runpy.run_path({run_artifact.__file__!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "import tvm"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True)
    assert not torch.exists()


def test_what_is_hidden_is_there_again_afterwards() -> None:
    before = sys.modules["json"], sys.modules["json.decoder"]
    with hidden("json"), pytest.raises(ImportError):
        import json  # noqa: F401
    assert (sys.modules["json"], sys.modules["json.decoder"]) == before
