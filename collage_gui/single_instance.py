"""Hands the files of a second start over to the window that is open already.

The window listens on a local socket whose name follows from the user's settings file; only this
user can connect to it. A second start sends the paths as one JSON line and ends when they are
taken.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from collage_gui.theme import FLOW_MS


def server_name(settings: str) -> str:
    """Return the name of the socket of one user's windows.

    Args:
        settings: Path of the user's settings file.
    """
    user = str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    return "collage-explorer-" + hashlib.sha256(f"{user}:{settings}".encode()).hexdigest()[:16]


def hand_over(name: str, paths: Sequence[str]) -> bool:
    """Ask the open window to open files.

    Args:
        name: Name of its socket.
        paths: The files.

    Returns:
        Whether a window took them.
    """
    socket = _connection_to(name)
    if socket is None:
        return False
    message = json.dumps([os.path.abspath(path) for path in paths]).encode() + b"\n"
    socket.write(message)
    socket.flush()
    # A window that is busy for longer is not used.
    taken = socket.waitForReadyRead(FLOW_MS) and bytes(socket.readAll().data())[:2] == b"ok"
    socket.disconnectFromServer()
    return taken


class Handover(QObject):
    """Listens for files of later starts; of several windows the first one listens."""

    def __init__(
        self, name: str, open_paths: Callable[[list[str]], None], parent: QObject | None = None
    ) -> None:
        """Begins to listen.

        Args:
            name: Name of the socket.
            open_paths: Opens the files that arrive.
            parent: The window.
        """
        super().__init__(parent)
        self._open_paths = open_paths
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._connected)
        # Else listening would take the name from the window that has it.
        if _connection_to(name) is None:
            QLocalServer.removeServer(name)  # a window that crashed left it behind
            self._server.listen(name)

    def _connected(self) -> None:
        while (socket := self._server.nextPendingConnection()) is not None:
            socket.readyRead.connect(lambda socket=socket: self._read(socket))

    def _read(self, socket: QLocalSocket) -> None:
        if not socket.canReadLine():
            return
        try:
            paths = json.loads(bytes(socket.readLine().data()))
        except ValueError:
            paths = None
        if isinstance(paths, list) and all(isinstance(path, str) for path in paths):
            socket.write(b"ok\n")
            socket.flush()
            self._open_paths(paths)
        else:
            socket.abort()


def _connection_to(name: str) -> QLocalSocket | None:
    """Return a connection to the window that listens on a socket; None where none does."""
    socket = QLocalSocket()
    socket.connectToServer(name)
    return socket if socket.waitForConnected(FLOW_MS) else None
