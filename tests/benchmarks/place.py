"""Models by name, and placing them: what several benchmarks share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.command import ROOT

MODELS = (
    "mnist",
    "light_resnet50",
    "light_squeezenet",
    "light_inception_v2",
    "mobilenet_v2",
    "bert",
)


def model_file(name: str, folder: Path) -> Path:
    """The .onnx file of a model given by name or path."""
    if name.endswith(".onnx"):
        return Path(name).resolve()
    if name == "mnist":
        return ROOT / "resources" / "models" / "mnist.onnx"
    path = folder / f"{name}.onnx"
    if not path.exists():
        subprocess.run([sys.executable, "-m", "tests.zoo", name, str(path)], check=True, cwd=ROOT)
    return path
