"""Asks for files, and writes them: pictures, tables, the report, the artifact."""

from __future__ import annotations

import io
import math
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QRectF, QUrl
from PySide6.QtGui import QDesktopServices, QImageReader, QImageWriter
from PySide6.QtWidgets import QFileDialog, QWidget

from collage_engine.drawing.svg import render
from collage_engine.records import protocol
from collage_engine.records.placement import Run
from collage_engine.records.settings import ReportFormat
from collage_engine.support.files import atomic_file, resource, write_atomically
from collage_engine.wording.amounts import as_sentence, bytes_text
from collage_engine.wording.figures import latency_text, winner_title
from collage_engine.wording.latencies import sharing_sentences
from collage_gui.document.document import Document
from collage_gui.document_window.picture_controller import PictureController
from collage_gui.graph_view.picture import Picture
from collage_gui.graph_view.view import GraphView
from collage_gui.messages import Messages
from collage_gui.theme import Theme


@dataclass(eq=False)
class ExportController:
    """The actions that export; each asks for a path and writes there."""

    document: Document
    view: GraphView
    """The view that is painted into pictures."""
    picture: PictureController
    files: DocumentFiles
    """Asks for paths."""
    messages: Messages
    theme: Theme
    """Decides whether an SVG is dark."""

    # -- pictures ----------------------------------------------------------------------

    def png(self) -> None:
        """Write the whole graph as PNG, smaller than its natural size where it is very large."""
        path = self.files.ask_save("Graph as PNG", f"{self.files.stem}.png", "PNG (*.png)")
        if path:
            area = self.picture.drawn.bounds
            self.files.write(lambda: save_image(self.view, area, path), path)

    def svg(self) -> None:
        """Write the whole graph as SVG."""
        stem = self.files.stem
        path = self.files.ask_save("Graph as SVG", f"{stem}.svg", "SVG (*.svg)")
        if path:
            drawn, dark = self.picture.drawn, self.theme.colours.dark
            self.files.write(lambda: save_svg(drawn, path, stem, dark), path)

    # -- the run -----------------------------------------------------------------------

    def report(self, kind: ReportFormat, title: str, suffix: str = "") -> None:
        """Write what the engine makes of the shown run, or of the last one, where the user says.

        Args:
            kind: The format.
            title: What the dialog that asks for the file is called.
            suffix: Ends the name that is proposed; the format by default.
        """
        suffix = suffix or kind
        name, ending = f"{self.files.stem}.{suffix}", suffix.rpartition(".")[2]
        path = self.files.ask_save(title, name, f"{ending.upper()} (*.{ending})")

        def arrived(answer: protocol.Exported) -> None:
            content = answer.content or b""
            self.files.write(lambda: write_atomically(path, content), path)

        run = self.document.runs.shown_or_last()
        if path:
            params = protocol.ExportReport(
                document=self.document.handle, run=run.id if run is not None else None, format=kind
            )
            self.document.requests.send(params, arrived)

    # -- the artifact ------------------------------------------------------------------

    def artifact(self) -> None:
        """Write the compiled module of the shown run, or of the last one, where the user says."""
        document = self.document
        run = document.runs.shown_or_last()
        shapes = document.shapes
        together = shapes.several or shapes.others
        folder = self.files.ask_folder("Export the compiled artifact", "artifact")
        if run is None or not folder:
            return

        def arrived(answer: protocol.Exported) -> None:
            content = answer.content
            if content is not None:
                self.messages.clear("artifact")
                self.files.write(lambda: _unpack(content, folder), folder)
                return
            written = answer.path or folder
            text = artifact_sentence(written, "" if together else exported(run))
            if answer.sharing is not None:
                sentences = sharing_sentences(len(shapes.entries), answer.sharing)
                text = " ".join([f"{text}.", *map(as_sentence, sentences)])
                document.runs.refresh()
            self.messages.show_message(
                text,
                "info",
                "Open folder",
                lambda: open_with_the_system(written),
                topic="artifact",
            )

        path = None if document.client.connection.is_remote else folder
        self.messages.show_message("Exporting the artifact…", "info", topic="artifact")
        request: protocol.Request[protocol.Exported]
        request = protocol.ExportArtifact(document=document.handle, run=run.id, path=path)
        if together:
            request = protocol.ExportShapes(
                document=document.handle, path=path, others=shapes.others
            )
        document.requests.send(request, arrived)


def _unpack(content: bytes, folder: str) -> None:
    """Unpack a tar archive into a folder; nothing is written outside it."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")


def exported(run: Run) -> str:
    """Says what a run exports, and how fast it is: ``TVM only, 5.28 ms measured``."""
    if run.placement is None:
        return winner_title(run)
    return f"{winner_title(run)}, {latency_text(run.placement)}"


def artifact_sentence(folder: str, what: str = "") -> str:
    """Says where an artifact is, how large it is, and how it is run.

    Args:
        folder: The artifact.
        what: The placement in it: what the run exports, whatever the graph shows.
    """
    size = sum(
        os.path.getsize(os.path.join(root, name))
        for root, _, names in os.walk(folder)
        for name in names
    )
    content = f": {what}" if what else ""
    run = f"Run it: python {folder}/loader/run_artifact.py"
    return f"Written: {folder} ({bytes_text(size)}){content}. {run}"


def save_image(view: GraphView, area: QRectF, path: str) -> None:
    """Write a part of the graph as PNG, as large as programs made with Qt read it.

    Args:
        view: The view that shows the graph.
        area: The part, in scene units.
        path: The file.

    Raises:
        OSError: The file cannot be written.
    """
    pixels = QImageReader.allocationLimit() * 2**20 / 4  # four bytes each
    scale = min(1.0, math.sqrt(pixels / max(area.width() * area.height(), 1.0)))
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
    crossing = [each.transition for each in picture.crossings]
    text = render(
        picture.scene, picture.styles, picture.legend, picture.outlines, title, dark, crossing
    )
    write_atomically(path, text.encode())


VIEWABLE = (".html", ".png", ".svg")
"""Ends of the names of files that a browser or a viewer shows."""


@dataclass(eq=False)
class DocumentFiles:
    """File dialogs that begin beside the document's own file."""

    document: Document
    messages: Messages
    parent: QWidget
    """The parent of dialogs."""

    @property
    def stem(self) -> str:
        """Returns the name of the document's file without its suffix."""
        return os.path.splitext(os.path.basename(self.document.path or "graph"))[0]

    @property
    def folder(self) -> str:
        """Returns where files are written at first: beside the session, else beside the model.

        The sample model lies in the installed package, where nothing of the user's belongs.
        """
        folder = os.path.dirname(self.document.session_path or self.document.path)
        packaged = os.path.dirname(str(resource("models")))
        return os.path.expanduser("~") if folder.startswith(packaged) else folder

    def ask_save(self, title: str, name: str, kind: str) -> str:
        """Ask where to save.

        Args:
            title: Title of the dialog.
            name: The proposed file name.
            kind: The file filter, e.g. ``PNG (*.png)``.

        Returns:
            A path, or an empty string when the user cancels.
        """
        path, _ = QFileDialog.getSaveFileName(
            self.parent, title, os.path.join(self.folder, name), kind
        )
        return path

    def ask_folder(self, title: str, what: str) -> str:
        """Ask for the folder to make.

        Args:
            title: Title of the dialog.
            what: What the folder will hold, as the end of the name that is proposed.

        Returns:
            A path, or an empty string when the user cancels.
        """
        name = os.path.join(self.folder, f"{self.stem}-{what}")
        return QFileDialog.getSaveFileName(self.parent, title, new_name(name), "Folder (*)")[0]

    def write(self, write: Callable[[], object], path: str) -> None:
        """Call ``write``, and say in the banner what it wrote or why it could not."""
        try:
            write()
        except (OSError, MemoryError) as error:
            name = os.path.basename(path)
            self.messages.show_message(f"{name} could not be written: {error!s}", "error")
            return
        shows = os.path.isfile(path) and path.endswith(VIEWABLE)
        shown = path if shows or os.path.isdir(path) else os.path.dirname(path)
        label = "Open" if shows else "Open folder"
        self.messages.show_message(
            f"Written: {path}", "info", label, lambda: open_with_the_system(shown)
        )


def open_with_the_system(path: str) -> None:
    """Show a file, or a folder, in the program that the system has for it."""
    QDesktopServices.openUrl(QUrl.fromLocalFile(path))


def new_name(path: str) -> str:
    """Return a path that does not exist yet: the given one, or one with a number at its end.

    The dialog would open a folder that exists, where a new one is to be made.
    """
    number, free = 1, path
    while os.path.exists(free):
        number += 1
        free = f"{path}-{number}"
    return free
