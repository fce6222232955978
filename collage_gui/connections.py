"""Says where the engine runs: on this machine, or on another one over ssh."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import QProcessEnvironment

import collage_engine

Kind = Literal["local", "ssh", "command"]


@dataclass(frozen=True)
class Connection:
    """A way to start an engine: which program, and on which machine.

    ``target`` is a host for ``ssh``, and a command line for ``command``.
    """

    kind: Kind = "local"
    target: str = ""

    @property
    def command(self) -> list[str]:
        """Returns the command line that starts the engine."""
        if self.kind == "ssh":
            # A password prompt would hang a process without a terminal, and so would a host that is
            # gone: ssh ends when it has not answered three times.
            options = ["-o", "BatchMode=yes", "-o", "ServerAliveInterval=15"]
            return ["ssh", *options, "--", self.target, "collage", "serve"]
        if self.kind == "command":
            return shlex.split(self.target)
        return [sys.executable, "-P", "-m", "collage_engine", "serve"]

    @property
    def is_remote(self) -> bool:
        """Tells whether it is another machine, to which models must be sent by value."""
        return self.kind == "ssh"

    @property
    def title(self) -> str:
        """Says where the engine runs, as the window says it."""
        return {
            "local": "this machine",
            "ssh": f"ssh {self.target}",
            "command": "a given command",
        }[self.kind]


def parse_connection(text: str) -> Connection:
    """Read a connection as it is typed.

    Args:
        text: ``local``, ``ssh:HOST`` or ``command:…``.

    Raises:
        ValueError: The text is none of these.
    """
    kind, _, target = text.partition(":")
    if kind == "local":
        return Connection()
    if kind in ("ssh", "command") and target.strip():
        target = target.strip()
        if kind == "ssh" and target.startswith("-"):
            raise ValueError(f"{target!r} is no host name")
        return Connection(kind, target)  # type: ignore[arg-type]
    raise ValueError(f"{text!r}: a connection is local, ssh:HOST or command:…")


def python_environment() -> QProcessEnvironment:
    """Returns an environment in which Python finds the same packages, also from a checkout."""
    environment = QProcessEnvironment.systemEnvironment()
    root = os.path.dirname(os.path.dirname(os.path.abspath(collage_engine.__file__)))
    known = environment.value("PYTHONPATH")
    environment.insert("PYTHONPATH", root + (os.pathsep + known if known else ""))
    return environment
