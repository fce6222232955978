"""TVM's interface imports PyTorch wherever it is installed; our processes do without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.machine.loader.run_artifact import hidden
from collage_engine.machine.worker import Worker
from collage_engine.model.importer import import_model
from tests.support.artifact_cases import MNIST, artifact_of, cover_in_turn

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


def test_an_artifact_needs_neither_pytorch_nor_tvms_python_package(
    torch: Path, tmp_path: Path
) -> None:
    model = import_model(MNIST)
    folder = artifact_of(model, cover_in_turn(model, ["tvm"]), tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1] + '/loader')\n"
        "import run_artifact; model = run_artifact.load(sys.argv[1])\n"
        "inputs, truth = run_artifact.read_sample(sys.argv[1], model.manifest)\n"
        "assert abs(model(inputs)[0] - truth[0]).max() < 1e-3\n"
        "assert not {'torch', 'tvm'} & sys.modules.keys()\n"
        "import torch; assert torch.here"
    )
    subprocess.run([sys.executable, "-P", "-c", code, folder], check=True)
    torch.unlink()
    program = [sys.executable, "-P", folder / "loader" / "run_artifact.py", folder]
    said = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    assert "agrees with the sample" in said and not torch.exists()


def test_what_is_hidden_can_be_imported_afterwards() -> None:
    with hidden("wave"), hidden("sys"), pytest.raises(ImportError):
        import wave
    import wave

    assert sys.modules["wave"] is wave and sys.modules["sys"] is sys
