"""Exporting one document: pictures, tables, report, artifact."""

from __future__ import annotations

from collections.abc import Callable

from collage_engine.records.files import write_atomically
from collage_gui import exports
from collage_gui.document_runs import RunActions
from collage_gui.panels.candidates import CandidatesPanel
from collage_gui.panels.outline import OutlinePanel
from collage_gui.panels.pins import PinsPanel
from collage_gui.panels.runs import RunsPanel


class ExportActions(RunActions):
    """Everything that writes a file."""

    outline: OutlinePanel
    candidates: CandidatesPanel
    pins: PinsPanel
    runs: RunsPanel

    def export_png_view(self) -> None:
        path = self.ask_save("Graph as PNG", f"{self.stem}.png", "PNG (*.png)")
        if path and self.picture is not None:
            area = self.view.visible_area().intersected(self.picture.bounds)
            scale = max(1.0, self.view.scale * 2)
            self._write(lambda: exports.save_image(self.view, area, path, scale), path)

    def export_png_selection(self) -> None:
        path = self.ask_save("Selection as PNG", f"{self.stem}-selection.png", "PNG (*.png)")
        if not path or self.picture is None:
            return
        from PySide6.QtCore import QRectF

        area = QRectF()
        for box in self.picture.scene.boxes_of(self.document.selection):
            area = area.united(self.picture.rectangles[box])
        area.adjust(-30, -30, 30, 30)
        self._write(lambda: exports.save_image(self.view, area, path), path)

    def export_png_whole(self) -> None:
        path = self.ask_save("Whole graph as PNG", f"{self.stem}.png", "PNG (*.png)")
        picture = self.picture
        if path and picture is not None:
            self._write(lambda: exports.save_tiles(self.view, picture, path), path)

    def export_svg(self) -> None:
        path = self.ask_save("Graph as SVG", f"{self.stem}.svg", "SVG (*.svg)")
        picture = self.picture
        if path and picture is not None:
            dark = self.theme.colours.dark
            self._write(lambda: exports.save_svg(picture, path, self.stem, dark), path)

    def tables(self) -> dict[str, str]:
        """Every table's CSV text by name."""
        return {
            "partitions": self.outline.partitions.model.as_csv(),
            "candidates": self.candidates.model.as_csv(),
            "pins": self.pins.model.as_csv(),
            "in-place": self.runs.in_place.rows_model.as_csv(),
            "changes": self.runs.changes.model.as_csv(),
        }

    def export_csv(self) -> None:
        folder = self.ask_save("Tables as CSV, into a folder", f"{self.stem}-tables", "Folder (*)")
        if folder:
            self._write(lambda: exports.save_tables(self.tables(), folder), folder)

    def export_report(self) -> None:
        path = self.ask_save("Report", f"{self.stem}.html", "HTML (*.html)")
        if path:
            self.export_report_to(path)

    def export_report_to(self, path: str, then: Callable[[], None] | None = None) -> None:
        from collage_engine.service.protocol import ExportReport

        document = self.document
        run = document.shown.run if document.shown else None

        def arrived(answer) -> None:
            content = answer.content or b""
            self._write(lambda: write_atomically(path, content), path)
            if then is not None:
                then()

        params = ExportReport(document=document.handle, run=run, format="html")
        document.client.request("export.report", params, arrived, document.failed.emit)

    def export_artifact(self) -> None:
        folder = self.ask_folder("Export the compiled artifact")
        if folder:
            self.export_artifact_to(folder)

    def export_artifact_to(self, folder: str, then: Callable[[], None] | None = None) -> None:
        from collage_engine.service.protocol import ExportArtifact

        document = self.document
        run = document.shown.run if document.shown and document.shown.run else None
        if run is None and document.visible_runs:
            run = document.visible_runs[-1].id
        if run is None:
            document.failed.emit("there is no run to export yet")
            return
        remote = document.client.connection.is_remote

        def arrived(answer) -> None:
            if answer.content is not None:
                self._write(lambda: _unpack(answer.content, folder), folder)
            else:
                self.banner.say(f"Written: {answer.path or folder}", "info")
            if then is not None:
                then()

        params = ExportArtifact(document=document.handle, run=run, path=None if remote else folder)
        self.banner.say("Exporting the artifact…", "info")
        document.client.request("export.artifact", params, arrived, document.failed.emit)


def _unpack(content: bytes, folder: str) -> None:
    """A tar archive into a folder, with nothing outside it."""
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")
