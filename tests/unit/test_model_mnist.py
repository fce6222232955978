"""The MNIST model that the product ships is what its generator writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "resources/models"


def test_generator_writes_the_shipped_bytes(tmp_path: Path) -> None:
    out = tmp_path / "mnist.onnx"
    subprocess.run([sys.executable, str(FOLDER / "make_mnist.py"), str(out)], check=True)
    assert out.read_bytes() == (FOLDER / "mnist.onnx").read_bytes()
