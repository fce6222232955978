"""Defines what coordinator and members of a farm say to each other: typed records as JSON.

Every message is bytes of one of these records, decoded through ``records.typed``. Functions go by
their names, models and artifacts as content-hashed chunks beside the messages.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from collage_engine.records.candidate import Candidate, CandidateRecord
from collage_engine.records.errors import FarmError
from collage_engine.records.event import Event
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainState
from collage_engine.records.typed import decode
from collage_engine.store.measurement import Measurement

PROTOCOL = 1
"""Version of these messages; machines of another version are refused."""

Record = TypeVar("Record")


def encode(record: object) -> bytes:
    """Return a record as bytes."""
    return msgspec.json.encode(record)


def read(data: bytes, kind: type[Record]) -> Record:
    """Reads bytes from another machine as the record that they must be.

    Raises:
        FarmError: They are something else.
    """
    try:
        return decode(data, kind)
    except msgspec.MsgspecError as error:
        raise FarmError(f"a machine sent no {kind.__name__}: {error}") from error


class Nothing(msgspec.Struct, frozen=True):
    """A message or an answer without content."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of every function: its body, or the error that it ended with."""

    body: bytes = b""
    error: str = ""
    """A sentence; empty: there was no error."""
    kind: str = ""
    """Name of the error's class in ``records.errors``; empty: it is a defect."""
    details: dict[str, Any] = {}
    again: bool = False
    """Whether the process that did the work ended, so that another machine may do better."""
    drift: float | None = None
    """Share by which the speed probe was slower than its reference; None: it was not read."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a machine says of itself."""

    protocol: int = PROTOCOL
    name: str = ""
    host: str = ""
    engine: str = ""
    """Hash of the engine's sources without the toolchains' adapters."""
    libraries: dict[str, str] = {}
    """Versions of Python and of the libraries that carry the messages."""
    processor: str = ""
    cores: int = 0
    fingerprint: str = ""
    toolchains: dict[str, str] = {}
    """Toolchains that are available, with their versions."""
    adapters: dict[str, str] = {}
    """Hashes of the sources of the toolchains' adapters, by toolchain."""
    compiler: str = ""
    """Version of TVM and what it compiles for."""
    busy: str = ""
    """Who else uses the machine, as a sentence; empty: nobody."""
    drift_limit: float = 0.0
    """Share of drift of the speed probe from which on the machine pauses; 0: the farm's own."""


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model by content: the files that its folder must hold, by name, with their SHA-256."""

    name: str
    """Name of the file that is opened."""
    files: dict[str, str]
    shapes: dict[str, tuple[int, ...]] = {}


class Have(msgspec.Struct, frozen=True):
    """``have``: which of these are missing."""

    hashes: tuple[str, ...]


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """``put``: a part of a file; ``fetch``: the part that is wanted."""

    sha256: str
    offset: int = 0
    size: int = 0
    """Bytes of the whole file (``put``), or bytes wanted (``fetch``)."""


class GroupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``group``: measure candidates over one set of operators, against each other."""

    model: ModelFiles
    settings: RunSettings
    """The run's, with its inputs by value: they decide the true values."""
    fingerprint: str
    candidates: tuple[Candidate, ...]
    versions: dict[str, str] = {}
    toolchains: tuple[str, ...] = ()
    """That the measuring child is given the environment of."""
    limit_s: float = 600.0


class GroupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of a group; those that were not reached are missing."""

    measurements: tuple[Measurement, ...]


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``run``: place a model with this machine's toolchains."""

    model: ModelFiles
    settings: RunSettings
    run_id: str
    pins: tuple[Pin, ...] = ()
    previous: Run | None = None
    spent_s: float = 0.0
    export: bool = False
    """Whether an artifact of the placement is wanted."""


class ExportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``export``: build the placement of a run whose machine was lost; the answer is a run's."""

    model: ModelFiles
    run: Run


class Update(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """News of a run, as ``records.results.RunUpdate``."""

    candidates: list[CandidateRecord] | None = None
    without_candidates: dict[str, dict[int, str]] | None = None
    constants: dict[str, float] | None = None
    run: Run | None = None
    toolchains: list[ToolchainState] | None = None


class RunAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a run: its last update, all that was measured, and the artifact as an archive."""

    update: Update
    measurements: tuple[Measurement, ...] = ()
    artifact: str = ""
    """SHA-256 of the archive, to be fetched by chunks; empty: there is none."""
    artifact_bytes: int = 0


class SharedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of a run that other machines may measure."""

    id: str
    candidates: tuple[Candidate, ...]


class News(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task says on its way; without content it is a sign of life."""

    lease: str
    event: Event | None = None
    update: Update | None = None
    measurements: tuple[Measurement, ...] = ()
    keys: tuple[str, ...] = ()
    """Measurement keys whose costs the run would like to know, if they are stored."""
    groups: tuple[SharedGroup, ...] = ()
    """Groups that other machines may measure from now on."""
    fingerprint: str = ""
    versions: dict[str, str] = {}
    toolchains: tuple[str, ...] = ()
    shares: bool = False
    """Whether this says which groups others may measure; those of an earlier message are void."""
    limit_s: float = 0.0
    """Seconds that are left for the groups."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """``claim``, beside a run: reserve groups for other machines, or give them back."""

    lease: str
    groups: tuple[str, ...] = ()
    give_back: tuple[str, ...] = ()


class Claimed(msgspec.Struct, frozen=True):
    """The groups that were reserved; the others are being measured already."""

    groups: tuple[str, ...]


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """``deliver``, beside a run: costs that are stored, or that another machine measured."""

    lease: str
    group: str = ""
    """The group that they are of; empty: they answer the run's keys."""
    measurements: tuple[Measurement, ...] = ()


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """``stop``, beside a run: end it soon with the best placement that it has."""

    lease: str
