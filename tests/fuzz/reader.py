"""The process that reads hostile files: it does the commands of a case and says how they ended."""

from __future__ import annotations

import contextlib
import io
import traceback
from dataclasses import dataclass

from collage_engine.cli.main import main as collage
from collage_engine.cli.screen import complain
from collage_engine.records import protocol
from collage_engine.service.engine import Engine
from collage_engine.support.errors import CollageError

IMPORT = "import"
"""In place of a command: the import of a model by an engine, in its job child."""
RAISED = 99
"""Status of a command that raised what no command may raise."""


@dataclass(frozen=True)
class Ended:
    """The exit status of a command, and the end of what it printed, or the exception's trace."""

    status: int
    said: str


class Reader:
    """Reads the files of one case after the other."""

    def __init__(self) -> None:
        self.engine = Engine()

    def __call__(self, commands: list[list[str]]) -> list[Ended]:
        return [self._ended(command) for command in commands]

    def _ended(self, command: list[str]) -> Ended:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                status = self._do(command)
            except SystemExit as error:
                status = int(error.code or 0)
            except BaseException:
                return Ended(RAISED, traceback.format_exc())
        return Ended(status, said.getvalue()[-20_000:])

    def _do(self, command: list[str]) -> int:
        if command[0] != IMPORT:
            return collage(command)
        try:
            opened = self.engine.request(protocol.ModelOpen(path=command[1]))
        except CollageError as error:
            complain(f"collage: {error}")
            return error.exit_status
        self.engine.request(protocol.DocumentClose(document=opened.document))
        return 0
