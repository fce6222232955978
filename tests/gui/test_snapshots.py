"""A few pictures of the canvas, compared tolerantly: fixed size, scale, font and theme.

``COLLAGE_UPDATE_SNAPSHOTS=1`` writes them anew; look at what you commit.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QRectF
from PySide6.QtGui import QImage

FOLDER = Path(__file__).parent / "snapshots"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fonts differ")


def pixels(image: QImage) -> np.ndarray:
    image = image.convertToFormat(QImage.Format.Format_RGB888)
    flat = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.bytesPerLine())
    return flat[:, : image.width() * 3].reshape(image.height(), image.width(), 3).astype(int)


def same(image: QImage, name: str) -> None:
    """At least 98.5 % of the pixels within 24 levels of the kept picture."""
    path = FOLDER / f"{name}.png"
    if os.environ.get("COLLAGE_UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        image.save(str(path))
        return
    kept = QImage(str(path))
    assert not kept.isNull(), f"{path.name} is missing: COLLAGE_UPDATE_SNAPSHOTS=1 writes it"
    assert (image.width(), image.height()) == (kept.width(), kept.height())
    far = np.abs(pixels(image) - pixels(kept)).max(axis=2) > 24
    assert far.mean() < 0.015, f"{far.mean():.1%} of the pixels differ from {path.name}"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_canvas_looks_as_it_did(drive, theme) -> None:
    d = drive()
    d.preferences.set("theme", theme)
    page = d.open()
    d.run(page)
    page.document.selection.select([3])
    page.pins.pin_never("tvm")
    d.until(lambda: not page.document.client._pending and not page.document.stale)
    d.qtbot.wait(50)
    r = page.picture.drawn.rectangles[0]
    same(page.view.image(QRectF(r.left() - 220, r.top() - 30, 640, 420), 1.0), f"near-{theme}")


def test_the_far_picture_looks_as_it_did(drive) -> None:
    d = drive()
    page = d.open("resnet50.onnx")
    d.run(page)
    page.document.selection.select(())
    d.trigger("expand_all")
    same(page.view.image(QRectF(0, 0, 3000, 2000), 0.16), "far-light")
