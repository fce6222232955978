"""Writes pictures and tables of a document to files."""

from __future__ import annotations

import os
from pathlib import Path

from PySide6.QtCore import QRectF
from PySide6.QtGui import QImageWriter

from collage_engine.drawing.svg import render
from collage_engine.records.files import atomic_file, write_atomically
from collage_gui.graph_view.picture import Picture
from collage_gui.graph_view.view import GraphView

LARGEST_PX = 16_384
"""Side of a single picture at most; chosen, half of what Qt can paint."""


def save_image(view: GraphView, area: QRectF, path: str, scale: float = 2.0) -> None:
    """Writes a part of the graph as PNG, at most ``LARGEST_PX`` a side.

    Args:
        view: The view that shows the graph.
        area: The part, in scene units.
        path: The file.
        scale: Pixels for each scene unit, at most.

    Raises:
        OSError: The file cannot be written.
    """
    scale = min(scale, LARGEST_PX / max(area.width(), area.height(), 1.0))
    image = view.image(area, scale)
    with atomic_file(path) as new:
        if not QImageWriter(str(new), b"png").write(image):
            raise OSError(f"{path} cannot be written")


def save_svg(picture: Picture, path: str, title: str, dark: bool) -> None:
    """Write the whole graph as SVG.

    Args:
        picture: The graph with its colours.
        path: The file.
        title: A heading in the picture.
        dark: Whether the background is dark.

    Raises:
        OSError: The file cannot be written.
    """
    crossing = [each.hand_over for each in picture.crossings]
    text = render(
        picture.scene, picture.styles, picture.legend, picture.outlines, title, dark, crossing
    )
    write_atomically(path, text.encode())


def save_tables(tables: dict[str, str], folder: str) -> list[str]:
    """Writes CSV texts by name, one file each, into a folder that is made if need be."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in tables.items():
        path = os.path.join(folder, f"{name}.csv")
        write_atomically(path, text.encode())
        written.append(path)
    return written
