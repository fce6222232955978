"""Has a child process compute the layout, without blocking the event loop."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from PySide6.QtCore import QObject, QProcess, QTimer, Signal

from collage_engine.drawing.columns import Layout, LayoutRequest
from collage_engine.drawing.layout_process import COMMAND
from collage_engine.records.time_limits import ANSWER_S
from collage_engine.records.typed import decode
from collage_gui.connections import python_environment


class LayoutClient(QObject):
    """Runs one layout at a time; a newer question kills the older one."""

    failed = Signal(str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._process: QProcess | None = None
        self._limit = QTimer(self, singleShot=True)
        self._limit.timeout.connect(self._too_slow)
        self._request: LayoutRequest | None = None
        self._then: Callable[[Layout], None] | None = None

    @property
    def busy(self) -> bool:
        """Tells whether a layout is awaited."""
        return self._process is not None

    def ask(self, request: LayoutRequest, then: Callable[[Layout], None]) -> None:
        """Lay out a graph.

        Args:
            request: The graph.
            then: Called with the layout, unless another one is asked for before.
        """
        self.cancel()
        self._request, self._then = request, then
        process = QProcess(self)
        process.setProcessEnvironment(python_environment())
        process.finished.connect(self._finished)
        self._process = process
        process.start(COMMAND[0], list(COMMAND[1:]))
        process.write(msgspec.json.encode(request))
        process.closeWriteChannel()
        self._limit.start(round(ANSWER_S * 1000))

    def cancel(self) -> None:
        """Kill the process; its layout is not wanted any more."""
        self._limit.stop()
        process, self._process = self._process, None
        if process is not None:
            process.finished.disconnect()
            process.kill()
            process.waitForFinished(500)
            process.deleteLater()

    def _finished(self, code: int, status: QProcess.ExitStatus) -> None:
        process, self._process = self._process, None
        self._limit.stop()
        if process is None:
            return
        output = process.readAllStandardOutput().data()
        process.deleteLater()
        then, request = self._then, self._request
        assert then is not None and request is not None
        try:
            if code or status != QProcess.ExitStatus.NormalExit:
                raise msgspec.DecodeError(f"layout ended with {code}")
            layout = decode(output, Layout)
        except msgspec.MsgspecError as error:
            self._fall_back(str(error))
            return
        then(layout)

    def _too_slow(self) -> None:
        request = self._request
        self.cancel()
        if request is not None:
            self._fall_back(f"layout took longer than {ANSWER_S:g} s")

    def _fall_back(self, reason: str) -> None:
        request, then = self._request, self._then
        if request is None or then is None:
            return
        if request.engine != "layered":
            self.ask(msgspec.structs.replace(request, engine="layered"), then)
        else:
            self.failed.emit(f"The graph could not be laid out: {reason}.")
