"""What the engine and its clients say to each other: methods, parameters, results, notifications.

JSON-RPC 2.0, one JSON document a line, UTF-8. Requests and answers carry the structs below as
``params`` and ``result``. Nothing refers to a path of one machine except ``ModelOpen.path``,
``SessionOpen.path`` and ``SessionSave.path``, which are the engine's own and have by-value
alternatives. ``SERVICE_PROTOCOL`` changes when a client of the old one would misunderstand.
"""

from __future__ import annotations

from typing import Any

import msgspec

from collage_engine.records.answers import (
    Comparison,
    ExplainAnswer,
    InsideAnswer,
    SearchAnswer,
)
from collage_engine.records.answers import NoCandidate as NoCandidate
from collage_engine.records.answers import WeightStatistics as WeightStatistics
from collage_engine.records.candidate import CandidateRecord, Cost
from collage_engine.records.graph import GraphRecord, ModelRecord
from collage_engine.records.pin import Pin, PinVerdict
from collage_engine.records.placement import Run
from collage_engine.records.settings import ReportFormat, RunSettings
from collage_engine.records.shapes import OpenSizes, ShapeChoice, ShapeRow, Sharing
from collage_engine.records.toolchain import Device, ToolchainState
from collage_engine.records.versions import SERVICE_PROTOCOL


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """``hello``: the first request; an engine of another version answers with an error."""

    version: int = SERVICE_PROTOCOL
    client: str = ""


class HelloAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``hello``: which engine, on which machine."""

    version: int
    engine: str
    """Version of collage_engine."""
    device: Device
    host: str


class Toolchains(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``toolchains.list`` (no parameters)."""

    toolchains: tuple[ToolchainState, ...]


class ModelOpen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``model.open``: import a model, by a path of the engine's machine or by value."""

    path: str | None = None
    content: bytes | None = None
    """The .onnx file itself (base64 in JSON), for an engine elsewhere."""
    name: str = ""
    """File name to show when opened by value."""
    shapes: dict[str, tuple[int, ...]] = {}
    inputs_npz: bytes | None = None
    """Representative inputs, as in ``RunSettings``: their sizes are those of inputs that ``shapes``
    and the model leave open."""


class ShapesOpen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``shapes.open``: open a model for several shapes. Answer: ``ShapesAnswer``."""

    model: ModelOpen | None = None
    """As for ``model.open``; None: the model of ``document``."""
    document: str = ""
    """An open document of the model. Its pins go to all shapes. Of the documents that are placed
    together with it, those of the same shapes are kept, and the others are closed."""
    choices: tuple[ShapeChoice, ...]


class ShapeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One of the shapes that a model is open for."""

    choice: ShapeChoice
    document: str
    """Handle of the document of this shape."""
    model: ModelRecord
    row: ShapeRow | None = None
    """Its line of the table of shapes, from its newest run; None before the first."""


class ShapesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``shapes.open`` and ``shapes.list``; no entries: the document is alone."""

    entries: tuple[ShapeEntry, ...] = ()


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``model.open`` and ``session.open``."""

    document: str
    """Handle of the open document, for all further requests."""
    model: ModelRecord
    shapes: tuple[ShapeEntry, ...] = ()
    """The shapes that a session holds together; empty: the document is alone."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of requests that need only the document: ``graph.get``, ``runs.list``."""

    document: str


class GraphAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``graph.get``."""

    graph: GraphRecord
    pins: tuple[Pin, ...] = ()


class PinsSet(msgspec.Struct, frozen=True, kw_only=True):
    """``pins.set``: replace the document's pins. Answer: ``PinsAnswer``."""

    document: str
    pins: tuple[Pin, ...]


class PinsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``pins.set``."""

    verdicts: tuple[PinVerdict, ...]
    """``pending`` until costs are known."""


class RunStart(msgspec.Struct, frozen=True, kw_only=True):
    """``run.start``: the whole run.

    It is answered at once with ``RunStarted``; then come notifications ``stage, progress, measured,
    log, provisional`` and finally ``done`` for this document. ``settings.budget_s`` is the time of
    the whole run; ``settings.confirmation`` ``"quick"`` compares the best cover with the last run's
    placement and the best baseline only.
    """

    document: str
    settings: RunSettings = RunSettings()


class RunStarted(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``run.start``: the id of the run."""

    run: str


class RunCancel(msgspec.Struct, frozen=True, kw_only=True):
    """``run.cancel``: answered within a second; ``done`` follows with state cancelled.

    With ``keep`` the run confirms its best placement so far quickly and ends as a finished one,
    whose document says that it was stopped. A second request, with or without ``keep``, ends it
    at once.
    """

    document: str
    keep: bool = False


class RequestCancel(msgspec.Struct, frozen=True, kw_only=True):
    """``request.cancel``: stops a request that is being worked on, by its JSON-RPC ``id``.

    It is answered at once, also where there is no such request any more; the request itself is
    answered with an error of kind ``Cancelled``. A run is stopped by ``run.cancel``.
    """

    request: int | str


class ShownCover(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The placement that a client shows, to which explanations and prices refer."""

    run: str = ""
    """Id of the run that exports it; empty: none does."""
    candidates: tuple[str, ...] = ()
    """Ids of its candidates, where no run exports it."""


class RunSearch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``run.search``: search on stored costs only. Answer: ``SearchAnswer``."""

    document: str
    settings: RunSettings = RunSettings()
    shown: ShownCover = ShownCover()
    """What prices are against; where it names nothing, the best placement."""


class CandidatesQuery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``candidates.query``: candidates that contain any of ``nodes`` (all when empty)."""

    document: str
    nodes: tuple[int, ...] = ()


class CandidatesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``candidates.query`` and ``measure.now``."""

    candidates: tuple[CandidateRecord, ...]
    regrets: dict[str, float | None] = {}
    """As in ``SearchAnswer``."""
    regret_bounds: dict[str, float] = {}
    """As in ``SearchAnswer``."""


class Explain(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``explain``: why a node runs where it does. Answer: ``ExplainAnswer``."""

    document: str
    node: int
    shown: ShownCover = ShownCover()
    """The placement that is explained; where it names nothing, that of the newest run."""


class MeasureNow(msgspec.Struct, frozen=True, kw_only=True):
    """``measure.now``: measure these operators as one partition.

    They are measured on every toolchain (or the ones named), again and ``longer`` if asked.
    Candidates arrive as ``measured``; answer: ``CandidatesAnswer``.
    """

    document: str
    nodes: tuple[int, ...]
    toolchains: tuple[str, ...] = ()
    longer: bool = False


class InsideQuery(msgspec.Struct, frozen=True, kw_only=True):
    """``inside.get``: what is in a candidate: Relax, TIR, source, plan; or a node's weights."""

    document: str
    candidate: str | None = None
    node: int | None = None


class RunsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``runs.list`` and ``runs.edit``: the runs, the oldest first."""

    runs: tuple[Run, ...]


class RunEdit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``runs.edit``: rename, note or delete a run. Answer: ``RunsAnswer``."""

    document: str
    run: str
    name: str | None = None
    note: str | None = None
    delete: bool = False


class RunsCompare(msgspec.Struct, frozen=True, kw_only=True):
    """``runs.compare``: b against a. Answer: ``Comparison``."""

    document: str
    a: str
    b: str


class ExportArtifact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``export.artifact``: the run's placement as an artifact folder.

    It goes to ``path`` of the engine's machine, or, without one, it comes as the bytes of a tar
    archive.
    """

    document: str
    run: str
    path: str | None = None


class ExportShapes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``export.shapes``: one artifact with an entry for each shape, from each shape's newest run.

    It goes to ``path`` as that of ``export.artifact`` does. Answer: ``Exported`` with ``sharing``.
    """

    document: str
    path: str | None = None
    nearest: bool = False
    """Whether inputs are padded to the next larger shape, along dimensions where it is proved
    that this changes no result."""


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """``export.report``: answer ``Exported`` with the file's bytes."""

    document: str
    run: str | None = None
    format: ReportFormat = "html"
    """``csv``: all candidates; also as CSV, ``latencies``: the run beside its baselines,
    ``runs``: all runs, and ``shapes``: the shapes that were placed with this run's."""


class Exported(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer of what writes a file: where it is, or its content."""

    path: str | None = None
    content: bytes | None = None
    sharing: Sharing | None = None
    """Of ``export.shapes``: what the entries have in common."""


class SessionOpen(msgspec.Struct, frozen=True, kw_only=True):
    """``session.open``. Answer: ``ModelAnswer``."""

    path: str


class SessionSave(msgspec.Struct, frozen=True, kw_only=True):
    """``session.save``: write the document's session file. Answer: ``Exported``."""

    document: str
    path: str


class MeasuredMany(msgspec.Struct, frozen=True, kw_only=True):
    """Notification ``measured``: costs that arrived since the last one (at most 20 a second)."""

    document: str
    costs: dict[str, Cost]


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """``stage, progress, log, provisional, done, probing``: an event, and what it is about.

    Every notification but ``measured`` is one.
    """

    document: str
    """Empty: none (``probing``)."""
    event: dict[str, Any]
    """``records.event`` as builtins, with its ``type`` tag."""


METHODS: dict[str, tuple[type, type]] = {
    "hello": (Hello, HelloAnswer),
    "toolchains.list": (type(None), Toolchains),
    "model.open": (ModelOpen, ModelAnswer),
    "model.dimensions": (ModelOpen, OpenSizes),
    "shapes.open": (ShapesOpen, ShapesAnswer),
    "shapes.list": (Document, ShapesAnswer),
    "request.cancel": (RequestCancel, type(None)),
    "document.close": (Document, type(None)),
    "graph.get": (Document, GraphAnswer),
    "pins.set": (PinsSet, PinsAnswer),
    "run.start": (RunStart, RunStarted),
    "run.cancel": (RunCancel, type(None)),
    "run.search": (RunSearch, SearchAnswer),
    "candidates.query": (CandidatesQuery, CandidatesAnswer),
    "explain": (Explain, ExplainAnswer),
    "measure.now": (MeasureNow, CandidatesAnswer),
    "inside.get": (InsideQuery, InsideAnswer),
    "runs.list": (Document, RunsAnswer),
    "runs.edit": (RunEdit, RunsAnswer),
    "runs.compare": (RunsCompare, Comparison),
    "export.artifact": (ExportArtifact, Exported),
    "export.shapes": (ExportShapes, Exported),
    "export.report": (ExportReport, Exported),
    "session.open": (SessionOpen, ModelAnswer),
    "session.save": (SessionSave, Exported),
}
"""Method → (type of params, type of result). Errors: code −32000 with the sentence as message
and ``data: {kind, exit_status}``; −32601 unknown method; −32602 bad params, naming the field."""
