"""Finds icons, fonts and sample models: in the wheel, or in a checkout."""

from __future__ import annotations

from pathlib import Path

import collage_engine


def asset(name: str) -> Path:
    """Returns the path of a packaged file, e.g. ``models/mnist.onnx``."""
    engine = Path(collage_engine.__file__).parent
    packaged = engine / "_resources" / name
    return packaged if packaged.exists() else engine.parent / "resources" / name
