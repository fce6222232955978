"""The errors a user can meet: one clear sentence each, and the exit status it deserves."""

from __future__ import annotations


class CollageError(Exception):
    """The work failed. ``str(error)`` is one sentence: what, where, and what to do."""

    exit_status = 1


class UsageError(CollageError):
    """The request itself is wrong: an unknown option, file, node or toolchain."""

    exit_status = 2


class InvalidValue(UsageError, ValueError):
    """A value has a type or size that what it is for cannot have.

    It is a ``ValueError`` too, so that msgspec reports it as it reports every other fault of a
    message or file that it reads, with the place.
    """


class ModelError(CollageError):
    """The model file cannot be read, or holds something the engine cannot import."""


class ToolchainError(CollageError):
    """A toolchain cannot take a function (its sentence becomes the candidate's reason)."""


class ToolchainFault(ToolchainError):
    """A toolchain raised what it may not raise, or gave an answer that is none.

    Attributes:
        toolchain: Its name.
    """

    def __init__(self, message: str, toolchain: str = "") -> None:
        super().__init__(message)
        self.toolchain = toolchain


class UnsupportedError(ToolchainError):
    """The toolchain knows that it cannot take this operator, type or layout."""


class MeasureError(CollageError):
    """A measurement could not be made or stored."""


class WrongNumbersError(MeasureError):
    """What a candidate computes differs from the true values of this model."""


class InfeasibleError(CollageError):
    """No placement satisfies the pins; ``details`` is the ``Infeasible`` record as builtins."""

    def __init__(self, message: str, details: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.details = details or {}


class SessionError(CollageError):
    """A session file cannot be opened or written."""


class ArtifactError(CollageError):
    """An artifact folder cannot be written, or does not match its manifest."""


class ProtocolError(CollageError):
    """The other side of the service speaks another version, or no JSON-RPC at all."""


class Cancelled(CollageError):
    """The user stopped the work; what was measured is kept."""

    exit_status = 130


class FarmError(CollageError):
    """A farm cannot be reached or used, or has lost the machines that the work needs."""
