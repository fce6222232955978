"""What is asked of the engine: each request once, with its answer, and what the engine tells.

Clients send requests as JSON-RPC 2.0, one JSON document a line, UTF-8: the fields of a request's
struct are its ``params``, and the answer is its ``result``. Programs in the engine's own process
give it the same structs (``Engine.request``), and what needs TVM or a model's file is done by the
process of the run, which is sent the struct too, in a ``Job``. Nothing refers to a path of one
machine except the fields ``path`` and ``out``, which are the engine's own; opening a model and
exporting have by-value alternatives. ``SERVICE_PROTOCOL`` changes when a client of the old one
would misunderstand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, get_args

import msgspec

from collage_engine.records.answers import (
    ExplainAnswer,
    InsideAnswer,
    Price,
    RunUpdate,
    SearchAnswer,
)
from collage_engine.records.candidate import Candidate, CandidateRecord
from collage_engine.records.event import Event
from collage_engine.records.graph import GraphRecord, ModelRecord
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Profile, Run
from collage_engine.records.settings import ReportFormat, RunSettings
from collage_engine.records.shapes import OpenSizes, ShapeChoice, ShapeRow, Sharing
from collage_engine.records.toolchain import Device, ToolchainState
from collage_engine.records.versions import SERVICE_PROTOCOL
from collage_engine.support.time_limits import JOB_S, WORK_S

Answer = TypeVar("Answer")
Outcome = TypeVar("Outcome")
Asked = TypeVar("Asked", bound="ChildRequest[Any, Any]", covariant=True)
Imported = tuple[ModelRecord, GraphRecord]
"""What the process of the run answers of a model that it opens."""
Profiled = tuple[Profile, ToolchainState]
"""What a runtime said of its layers, and how it is called and drawn."""
Shapes = dict[str, tuple[int, ...]]
"""Shapes of a model's inputs that the user chose, by name."""


# -- answers --------------------------------------------------------------------------


class HelloAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``hello``: which engine, on which machine."""

    engine: str
    """Version of collage_engine."""
    device: Device
    host: str


class ShapeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One of the shapes that a model is open for."""

    choice: ShapeChoice
    document: str
    """Handle of the document of this shape."""
    model: ModelRecord
    row: ShapeRow | None = None
    """Its line of the table of shapes, from its newest run; None before the first."""


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``model.open`` and ``session.open``."""

    document: str
    """Handle of the open document, for all further requests."""
    model: ModelRecord
    shapes: tuple[ShapeEntry, ...] = ()
    """The shapes that a session holds together; empty: the document is alone."""


class GraphAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``graph.get``."""

    graph: GraphRecord
    pins: tuple[Pin, ...] = ()


class CandidatesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``candidates.query`` and ``measure.now``."""

    candidates: tuple[CandidateRecord, ...]
    prices: dict[str, Price] = {}
    """As in ``SearchAnswer``."""


class Exported(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer of what writes a file: where it is, or its content."""

    path: str | None = None
    content: bytes | None = None
    sharing: Sharing | None = None
    """Of ``export.shapes``: what the entries have in common."""


# -- requests -------------------------------------------------------------------------


class Request(msgspec.Struct, Generic[Answer], frozen=True, kw_only=True, omit_defaults=True):
    """Something that is asked of the engine, and answered with an ``Answer``."""

    method: ClassVar[str]
    """What JSON-RPC, error messages and the log call it: ``model.open`` for ``ModelOpen``."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.method = re.sub(r"\B([A-Z])", r".\1", cls.__name__).lower()


class ChildRequest(Request[Answer], Generic[Answer, Outcome], frozen=True, kw_only=True):
    """A request of which the process of the run does the work, whose result is an ``Outcome``."""

    limit_s: ClassVar[float] = JOB_S
    """Seconds without any event, or the outcome, after which the work is given up."""
    opens: ClassVar[bool] = False
    """Whether the work only opens the model or reads a file: its end says that it cannot be."""
    on_model: ClassVar[bool] = False
    """Whether the model is opened first, within the limit of opening."""


class FileRequest(ChildRequest[Answer, Outcome], frozen=True, kw_only=True):
    """A request that opens a model or reads a file."""

    limit_s = WORK_S
    opens = True


class DocumentRequest(Request[Answer], frozen=True, kw_only=True):
    """A request about an open document, which is named by its handle."""

    document: str


class ModelRequest(ChildRequest[Answer, Outcome], frozen=True, kw_only=True):
    """A request about an open document of which the process of the run does the work."""

    document: str
    on_model = True


class Hello(Request[HelloAnswer], frozen=True, kw_only=True, omit_defaults=False):
    """``hello``: the first request; an engine of another version answers with an error."""

    version: int = SERVICE_PROTOCOL


class ModelFileRequest(FileRequest[Answer, Outcome], frozen=True, kw_only=True):
    """A request about a model, by a path of the engine's machine or by value."""

    path: str | None = None
    content: bytes | None = None
    """The .onnx file itself (base64 in JSON), for an engine elsewhere."""
    name: str = ""
    """File name to show when opened by value."""


class ModelOpen(ModelFileRequest[ModelAnswer, Imported], frozen=True, kw_only=True):
    """``model.open``: import a model."""

    shapes: dict[str, tuple[int, ...]] = {}
    inputs_npz: bytes | None = None
    """Representative inputs, as in ``RunSettings``: their sizes are those of inputs that ``shapes``
    and the model leave open."""


class ModelDimensions(ModelFileRequest[OpenSizes, OpenSizes], frozen=True, kw_only=True):
    """``model.dimensions``: which sizes of its inputs a model leaves open; nothing is imported."""


class ShapesResolve(FileRequest[tuple[Shapes, ...], tuple[Shapes, ...]], frozen=True, kw_only=True):
    """``shapes.resolve``: the sizes of inputs that each choice gives; nothing is imported."""

    path: str
    choices: tuple[ShapeChoice, ...]
    inputs_npz: bytes | None = None
    """As for ``model.open``: these say what the choices leave open."""


class ShapesOpen(Request[tuple[ShapeEntry, ...]], frozen=True, kw_only=True):
    """``shapes.open``: open a model for several shapes."""

    model: ModelOpen | None = None
    """As for ``model.open``; None: the model of ``document``."""
    document: str = ""
    """An open document of the model. Its pins go to all shapes. Of the documents that are placed
    together with it, those of the same shapes are kept, and the others are closed."""
    choices: tuple[ShapeChoice, ...]


class ToolchainsList(Request[tuple[ToolchainState, ...]], frozen=True, kw_only=True):
    """``toolchains.list``: probe every toolchain."""

    anew: bool = False
    """Whether what was found minutes ago is not trusted."""


class DocumentClose(DocumentRequest[None], frozen=True, kw_only=True):
    """``document.close``: forget a document; its run, if it has one, is stopped."""


class GraphGet(DocumentRequest[GraphAnswer], frozen=True, kw_only=True):
    """``graph.get``: the document's graph and pins."""


class ShapesList(DocumentRequest[tuple[ShapeEntry, ...]], frozen=True, kw_only=True):
    """``shapes.list``: the shapes that the document's model is open for; none: it is alone."""


class RunsList(DocumentRequest[tuple[Run, ...]], frozen=True, kw_only=True):
    """``runs.list``: the document's runs, the oldest first."""


class PinsSet(DocumentRequest[None], frozen=True, kw_only=True):
    """``pins.set``: replace the document's pins; verdicts come with the next search or run."""

    pins: tuple[Pin, ...]


class RunStart(ModelRequest[str, RunUpdate], frozen=True, kw_only=True):
    """``run.start``: the whole run.

    It is answered at once with the run's id; then come notifications ``stage, progress, measured,
    log, provisional`` and finally ``done`` for this document. ``settings.budget_s`` is the time of
    the whole run; ``settings.confirmation`` ``"quick"`` compares the best cover with the last run's
    placement and the best baseline only.
    """

    settings: RunSettings = RunSettings()
    out: str | None = None
    """Folder of the artifact; None: nothing is exported."""
    run: str = ""
    """Id of the run; empty: a new one."""
    spent_s: float = 0.0
    """Seconds of the budget that were spent before, on opening the model."""


class RunCancel(DocumentRequest[None], frozen=True, kw_only=True):
    """``run.cancel``: answered within a second; ``done`` follows with state cancelled.

    With ``keep`` the run confirms its best placement so far quickly and ends as a finished one,
    whose document says that it was stopped. A second request, with or without ``keep``, ends it
    at once.
    """

    keep: bool = False


class RequestCancel(Request[None], frozen=True, kw_only=True):
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


class Enumerate(ModelRequest[CandidatesAnswer, RunUpdate], frozen=True, kw_only=True):
    """``enumerate``: find all candidates, with the costs that are stored."""

    settings: RunSettings = RunSettings()


class RunSearch(DocumentRequest[SearchAnswer], frozen=True, kw_only=True):
    """``run.search``: search on stored costs only."""

    settings: RunSettings = RunSettings()
    shown: ShownCover = ShownCover()
    """What prices are against; where it names nothing, the best placement."""


class CandidatesQuery(DocumentRequest[CandidatesAnswer], frozen=True, kw_only=True):
    """``candidates.query``: candidates that contain any of ``nodes`` (all when empty)."""

    nodes: tuple[int, ...] = ()


class Explain(DocumentRequest[ExplainAnswer], frozen=True, kw_only=True):
    """``explain``: why a node runs where it does."""

    node: int
    shown: ShownCover = ShownCover()
    """The placement that is explained; where it names nothing, that of the newest run."""


class MeasureNow(ModelRequest[CandidatesAnswer, CandidatesAnswer], frozen=True, kw_only=True):
    """``measure.now``: measure these operators as one partition.

    They are measured on every toolchain (or the ones named), again and ``longer`` if asked.
    Candidates arrive as ``measured``; answer: ``CandidatesAnswer``.
    """

    nodes: tuple[int, ...]
    toolchains: tuple[str, ...] = ()
    longer: bool = False


class InsideQuery(ModelRequest[InsideAnswer, InsideAnswer], frozen=True, kw_only=True):
    """``inside.query``: what is in a candidate: Relax, TIR, plan; or what a node holds."""

    candidate: str | None = None
    node: int | None = None


class RunEdit(DocumentRequest[tuple[Run, ...]], frozen=True, kw_only=True):
    """``run.edit``: rename, note or delete a run; answered as ``runs.list`` is."""

    run: str
    name: str | None = None
    note: str | None = None
    delete: bool = False


class ExportArtifact(ModelRequest[Exported, Exported], frozen=True, kw_only=True):
    """``export.artifact``: the run's placement as an artifact folder.

    It goes to ``path`` of the engine's machine, or, without one, it comes as the bytes of a tar
    archive.
    """

    run: str
    path: str | None = None


class ExportShapes(ModelRequest[Exported, Exported], frozen=True, kw_only=True):
    """``export.shapes``: one artifact with an entry for each shape, from each shape's newest run.

    It goes to ``path`` as that of ``export.artifact`` does.
    """

    on_model = False
    path: str | None = None
    others: bool = False
    """Whether it takes any other shape, too, by the model's own file."""


class ExportReport(DocumentRequest[Exported], frozen=True, kw_only=True):
    """``export.report``: answer ``Exported`` with the file's bytes."""

    run: str | None = None
    format: ReportFormat = "html"
    """``csv``: all candidates; also as CSV, ``latencies``: the run beside its baselines,
    ``runs``: all runs, and ``shapes``: the shapes that were placed with this run's."""


class SessionOpen(Request[ModelAnswer], frozen=True, kw_only=True):
    """``session.open``."""

    path: str


class SessionSave(DocumentRequest[Exported], frozen=True, kw_only=True):
    """``session.save``: write the document's session file."""

    path: str


class SessionContinue(DocumentRequest[None], frozen=True, kw_only=True):
    """``session.continue``: go on with the runs of a session's file, if there is one.

    Each document of the model for which the file has the same shape takes over its runs. Shapes
    that only the file has are opened too, so that saving to the file keeps them.
    """

    path: str
    choice: ShapeChoice | None = None
    """What the user calls the shape of a document that is alone."""


class ProfileMake(ModelRequest[Run, Profiled], frozen=True, kw_only=True):
    """``profile.make``: profile the model by a runtime's own means, as one of the runs."""

    limit_s = WORK_S
    settings: RunSettings = RunSettings()
    toolchain: str


class ProfileRead(ModelRequest[Run, Profiled], frozen=True, kw_only=True):
    """``profile.read``: read what a runtime's tools wrote of the model; the model is not needed."""

    on_model = False
    path: str


def answer_type(request: type[Request[Any]]) -> Any:
    """Return the type of a request's answer."""
    (base, *_) = request.__orig_bases__  # type: ignore[attr-defined]
    return get_args(base)[0]


# -- the process of the run ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Job(Generic[Asked]):
    """What the process of the run is sent: a request, and what it concerns of a document."""

    request: Asked
    path: str
    """The model's file, or the file that is read."""
    shapes: Shapes = field(default_factory=dict)
    settings: RunSettings = field(default_factory=RunSettings)
    """Of the document's last run."""
    pins: tuple[Pin, ...] = ()
    candidate: Candidate | None = None
    """The candidate that the request names."""
    runs: tuple[Run, ...] = ()
    """The runs that the request is about: of ``run.start``, a run to compare with."""
    choices: tuple[ShapeChoice, ...] = ()
    """The shape of each of several runs: the sizes of its inputs and of the named dimensions."""
    out: str | None = None
    """What is written, if it is: where it may lie half-written when the process ends."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Toolchains that ended the process when they were asked about a model, with the reasons."""


# -- notifications ---------------------------------------------------------------------


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """``stage, progress, measured, log, provisional, done, probing``: an event of a document."""

    document: str
    """Empty: none (``probing``)."""
    event: Event
