"""Carries out the service's requests, for the server and, in process, the command line.

The engine holds documents as plain records and answers from them (``answers``); whatever needs
TVM, a model file or a toolchain is done by the pipeline in a child process (``run_client``).
"""

from __future__ import annotations

import logging
import signal
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from collage_engine.machine.device import physical_cores
from collage_engine.machine.folders import Scratch
from collage_engine.planning.document_search import search_document
from collage_engine.records import protocol as p
from collage_engine.records.answers import InsideAnswer, RunUpdate
from collage_engine.records.event import Done, Event, Log, Measured, Probing, Provisional
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Run
from collage_engine.records.protocol import Answer, ChildRequest, Job, Outcome, Request, Shapes
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import MOST_SHAPES, OpenSizes, ShapeChoice
from collage_engine.records.toolchain import ToolchainState
from collage_engine.records.versions import SERVICE_PROTOCOL, __version__
from collage_engine.service import answers
from collage_engine.service.open_document import OpenDocument
from collage_engine.service.run_client import PipelineClient, Ticket
from collage_engine.store.document import Document
from collage_engine.store.pins import rebind_pins
from collage_engine.store.profiles import run_of_profile
from collage_engine.store.session_file import earlier_session, load_session
from collage_engine.support.errors import (
    Cancelled,
    CollageError,
    ModelError,
    ProtocolError,
    UsageError,
)
from collage_engine.support.files import file_name, user_path
from collage_engine.wording.sentences import ENDING

_LOG = logging.getLogger(__name__)

Listener = Callable[[str, Event], None]

_TICKET: ContextVar[Ticket | None] = ContextVar("ticket", default=None)
"""Of the request that this thread serves."""


class Engine:
    """One method a request; ``listener`` receives events with the document they belong to.

    What a listener raises is logged, and ends nothing. ``closed``: ``close`` was called.
    """

    def __init__(self, listener: Listener | None = None) -> None:
        self._heard_by = listener
        self.closed = False
        self._documents: dict[str, OpenDocument] = {}
        self._pipeline = PipelineClient("pipeline")
        self._scratch = Scratch()
        """Models that came by value: gone with this process, even when it is killed."""
        self._side = PipelineClient("side")
        """Answers about a document while the pipeline is busy with a run."""
        self._starting = threading.Lock()
        """One run at a time, whatever document it is of."""
        self._runs: set[Ticket] = set()
        """The runs under way: one at most, or one that waits for it beside it."""

    def request(self, request: Request[Answer], ticket: Ticket | None = None) -> Answer:
        """Serve one request, by the table ``HANDLERS``.

        Args:
            request: The request.
            ticket: By which ``cancel_request`` stops it.

        Raises:
            CollageError: The sentence to show; ``Cancelled`` after ``cancel_request``.
        """
        token = _TICKET.set(ticket)
        try:
            handler = partial(HANDLERS[type(request)], self)
            if isinstance(request, (p.DocumentRequest, p.ModelRequest)):
                handler = partial(handler, self.document(request.document))
            answer: Answer = handler(request)
            return answer
        finally:
            _TICKET.reset(token)

    def cancel_request(self, ticket: Ticket) -> None:
        """Stop a request that waits for a child, also one that belongs to no document."""
        for client in (self._pipeline, self._side):
            client.cancel(ticket)

    def close(self) -> None:
        """Stop every child; what was measured is in the store."""
        self._pipeline.close()
        self._side.close()
        self.closed = True
        self._scratch.close()

    def tell(self, document: str, event: Any) -> None:
        """Tell the listener of an event; its failures are logged."""
        if self._heard_by is None:
            return
        try:
            self._heard_by(document, event)
        except Exception:
            _LOG.warning("the listener of events failed; the work goes on", exc_info=True)

    # -- engine and machine ------------------------------------------------------------

    def hello(self, request: p.Hello) -> p.HelloAnswer:
        """Say which engine and machine this is; ProtocolError to a client of another version."""
        import platform

        from collage_engine.machine.device import device

        if request.version != SERVICE_PROTOCOL:
            raise ProtocolError(
                f"the client speaks protocol version {request.version}, this engine "
                f"({__version__}) speaks {SERVICE_PROTOCOL}: install the same version on both sides"
            )
        return p.HelloAnswer(engine=__version__, device=device(), host=platform.node())

    def toolchains_list(self, request: p.ToolchainsList) -> tuple[ToolchainState, ...]:
        """Probe every toolchain.

        The listener is told of each for which a process is started, since that may take long.
        """
        from collage_engine.toolchains.registry import all_names, probe_all

        names = all_names()

        def on_child(name: str) -> None:
            self.tell("", Probing(number=names.index(name) + 1, total=len(names)))

        return tuple(probe_all(anew=request.anew, on_child=on_child))

    # -- documents ---------------------------------------------------------------------

    def model_open(self, request: p.ModelOpen) -> p.ModelAnswer:
        """Import a model; UsageError or ModelError says what is wrong with it."""
        path = self._model_file(request)
        opened = self._admit(self._imported(path, msgspec.structs.replace(request, content=None)))
        return p.ModelAnswer(document=opened.handle, model=opened.document.model)

    def _model_file(self, request: p.ModelFileRequest[Any, Any]) -> Path:
        """Return a model's file; one that came by value is kept as long as this engine."""
        if request.content is not None:
            name = file_name(request.name or "model.onnx")
            path = Path(tempfile.mkdtemp(prefix="model-", dir=self._scratch.path), name)
            path.write_bytes(request.content)
            return path
        if not request.path:
            raise UsageError(f"{request.method} needs a path or the file's content")
        path = user_path(request.path)
        readable = str(path).encode("utf-8", "backslashreplace").decode()
        if readable != str(path):
            raise UsageError(f"the name of the model file is not UTF-8 text: {readable}")
        return path

    def _imported(self, path: Path, request: p.ModelOpen) -> Document:
        job = Job(request=request, path=str(path.resolve()), shapes=request.shapes)
        model, graph = self._side_job(job)
        return Document(model=model, graph=graph)

    def model_dimensions(self, request: p.ModelDimensions) -> OpenSizes:
        """Say which sizes of its inputs a model leaves open; nothing is imported."""
        path = self._model_file(request)
        wanted = msgspec.structs.replace(request, content=None)
        return self._side_job(Job(request=wanted, path=str(path.resolve())))

    def shapes_resolve(self, request: p.ShapesResolve) -> tuple[Shapes, ...]:
        """Say which sizes of inputs choices give; nothing is imported."""
        return self._side_job(Job(request=request, path=str(user_path(request.path).resolve())))

    def shapes_open(self, request: p.ShapesOpen) -> tuple[p.ShapeEntry, ...]:
        """Open a model for several shapes, as documents that know each other.

        Raises:
            UsageError: A choice does not fit the model, or two give the same shapes.
            ModelError: The model cannot have one of the shapes.
        """
        base = self.document(request.document) if request.document else None
        if not request.choices or len(request.choices) > MOST_SHAPES:
            raise UsageError(f"shapes.open needs 1 to {MOST_SHAPES} shapes")
        if base is not None:
            if any(member.running is not None for member in base.all_shapes):
                raise UsageError("a run is under way: cancel it, or wait for it to end")
            path = Path(base.document.model.path)
        else:
            path = self._model_file(request.model or p.ModelOpen())
        sizes = self.shapes_resolve(p.ShapesResolve(path=str(path), choices=request.choices))
        for choice, shapes in zip(request.choices, sizes, strict=True):
            same = request.choices[sizes.index(shapes)]
            if same is not choice:
                raise UsageError(
                    f"{choice.text} and {same.text} are the same shapes: name one of them"
                )
        before = base.all_shapes if base is not None else []
        members: list[OpenDocument] = []
        for choice, shapes in zip(request.choices, sizes, strict=True):
            opened = next((m for m in before if m.document.model.shapes == shapes), None)
            if opened is None:
                try:
                    document = self._imported(path, p.ModelOpen(shapes=shapes))
                except (ModelError, UsageError) as error:
                    sentence = f"{choice.text} does not fit the model: {error}"
                    raise type(error)(sentence) from error
                opened = self._admit(document)
            opened.choice = choice
            members.append(opened)
        for member in members:
            member.together = members
            if base is not None and member is not base:
                graph = member.document.graph
                member.document.pins = rebind_pins(base.document.pins, graph)
        members[0].note_rows()
        for member in before:
            if member not in members:
                self._forget_document(member)
        return answers.shapes_list(members[0])

    def _admit(self, document: Document) -> OpenDocument:
        opened = OpenDocument("d" + uuid.uuid4().hex[:8], document)
        self._documents[opened.handle] = opened
        return opened

    def document_close(self, opened: OpenDocument, request: p.DocumentClose) -> None:
        """Forget a document; its run, if it has one, is stopped."""
        if opened.running is not None:
            self._pipeline.cancel(opened.running)
        self._forget_document(opened)

    def _forget_document(self, opened: OpenDocument) -> None:
        self._documents.pop(opened.handle, None)
        if opened in opened.together:
            opened.together.remove(opened)

    def document(self, handle: str) -> OpenDocument:
        """Return the open document of this handle; UsageError where there is none."""
        try:
            return self._documents[handle]
        except KeyError:
            raise UsageError(f"there is no open document {handle!r}") from None

    def enumerate(self, opened: OpenDocument, request: p.Enumerate) -> p.CandidatesAnswer:
        """Find the document's candidates, with the costs that are stored; nothing is measured."""
        opened.take(self._side_job(opened.job(request)))
        return p.CandidatesAnswer(candidates=tuple(opened.document.candidates))

    def session_open(self, request: p.SessionOpen) -> p.ModelAnswer:
        """Open a session's file."""
        path = user_path(request.path)
        document = load_session(path)
        opened = self._admit(document)
        opened.bind_file(path, document)
        shapes, document.shapes = document.shapes, []
        members: list[OpenDocument] = []
        for shape in shapes:
            member = opened if shape.document is None else self._admit(shape.document)
            member.choice, member.together = shape.choice, members
            members.append(member)
        entries = answers.shapes_list(opened)
        return p.ModelAnswer(document=opened.handle, model=document.model, shapes=entries)

    def session_continue(self, opened: OpenDocument, request: p.SessionContinue) -> None:
        """Take over what a session's file holds of a model, if there is one, to save to it again.

        Raises:
            UsageError: What is at ``path`` is no session of this model; or the model is open for
                one shape, and the file holds one other shape.
        """
        path = user_path(request.path)
        held = earlier_session(path)
        opened.bind_file(path, held)
        if held is None:
            return
        alone = not opened.together
        several = bool(opened.together or held.shapes)
        same_model = opened.document.model.sha256 == held.model.sha256
        if not same_model or not (several or opened.document.continues(held)):
            raise UsageError(
                f"the session {path} is of another model ({held.model.path}) or of other input "
                "sizes: name another file"
            )
        members = list(opened.all_shapes)
        if alone and request.choice is not None:
            opened.choice = request.choice
        for its_choice, document in held.placed_shapes:
            member = next((m for m in members if m.document.continues(document)), None)
            if member is None:
                member = self._admit(document)
                member.choice = its_choice
                members.append(member)
            else:
                member.document.take_over(document)
                if alone:
                    member.choice = its_choice
        if several:
            for member in members:
                member.together, member.document.shapes = members, []

    def session_save(self, opened: OpenDocument, request: p.SessionSave) -> p.Exported:
        """Write a document to a session's file."""
        opened.save(user_path(request.path))
        return p.Exported(path=request.path)

    # -- runs --------------------------------------------------------------------------

    def run_start(self, opened: OpenDocument, request: p.RunStart) -> str:
        """Start a run in a thread of its own, under the pins as they are now; return its id.

        Raises:
            UsageError: Another run is under way.
        """
        request = msgspec.structs.replace(request, run=_new_id())
        with self._starting:
            if any(d.running is not None for d in list(self._documents.values())):
                raise UsageError("a run is under way: cancel it, or wait for it to end")
            opened.running = Ticket()
        work = (opened, request, tuple(opened.document.pins))
        threading.Thread(target=self._run_in_thread, args=work, daemon=True).start()
        return request.run

    def _run_in_thread(
        self, opened: OpenDocument, request: p.RunStart, pins: tuple[Pin, ...]
    ) -> None:
        try:
            self.run(request, pins)
            done = Done(state="finished", run=request.run)
        except Cancelled:
            done = Done(state="cancelled", reason="cancelled; what was measured is kept")
        except CollageError as error:
            done = Done(state="failed", reason=str(error))
        except Exception as error:
            _LOG.exception("the run failed by a defect")
            done = Done(state="failed", reason=f"the engine failed: {error!r}")
        finally:
            opened.running = None
        self.tell(opened.handle, done)

    def run(self, request: p.RunStart, pins: tuple[Pin, ...] | None = None) -> Run:
        """Do a whole run and return its document; it does not return before the run has ended.

        Args:
            request: The run.
            pins: What the user demands of the placement; None: the document's pins.

        Raises:
            Cancelled: It was cancelled; what was measured is kept.
            InfeasibleError: No placement satisfies the pins and limits.
            ArtifactError: The artifact cannot be written; the document has the run.
        """
        opened, settings = self.document(request.document), request.settings

        def on_event(event: object) -> None:
            if isinstance(event, RunUpdate):
                self._take(opened, event, settings)
                return
            if isinstance(event, Measured):
                opened.put_cost(event.candidate, event.cost)
            if isinstance(event, Provisional):
                opened.provisional = event.run
            self.tell(opened.handle, event)

        ticket = opened.running or Ticket()
        self._runs.add(ticket)
        opened.provisional = None
        try:
            quick = settings.confirmation == "quick"
            previous = opened.last_measured_run(settings) if quick else None
            job = replace(
                opened.job(msgspec.structs.replace(request, run=request.run or _new_id())),
                pins=tuple(opened.document.pins) if pins is None else pins,
                runs=() if previous is None else (previous,),
                out=request.out,
            )
            outcome = self._pipeline.job(job, ticket=ticket, on_event=on_event)
        finally:
            self._runs.discard(ticket)
        self._take(opened, outcome, settings)
        opened.provisional = None
        assert outcome.run is not None
        return outcome.run

    @staticmethod
    def _take(opened: OpenDocument, outcome: RunUpdate, settings: RunSettings) -> None:
        """Keep what a run found out, and the run itself where it is complete."""
        opened.take(outcome)
        if outcome.run is None:
            return
        with opened.lock:
            opened.document.settings = settings
            opened.document.runs.append(outcome.run)
            opened.note_rows()
        run = outcome.run
        with opened.searching:
            # Prices shown from now on are those at the costs of this run.
            now = opened.snapshot()
            answer, opened.search = search_document(now, settings, None, run.placement)
            opened.prices = answer.prices
        timed = run.placement is not None and run.placement.measured_us is not None
        if timed and [each.pin for each in run.pins] == [pin.written for pin in now.pins]:
            # Priced by what was measured, earlier runs included.
            run.pins, run.pins_us = list(answer.verdicts), answer.pins_us

    def run_cancel(self, opened: OpenDocument, request: p.RunCancel) -> None:
        """Stop a document's run at once, or with the best placement so far; ``done`` follows."""
        running = opened.running
        if running is None:
            return
        if request.keep:
            self._pipeline.keep(running)
        else:
            self._pipeline.cancel(running)

    @property
    def has_run(self) -> bool:
        """Return whether a run is under way."""
        return bool(self._runs)

    def keep(self) -> bool:
        """Have the run under way end with its best placement so far (the first Ctrl-C).

        Whatever else is under way is stopped at once. False: nothing was.
        """
        running = list(self._runs)
        if not running:
            return self.cancel()
        return any([self._pipeline.keep(ticket) for ticket in running])

    def cancel(self) -> bool:
        """Stop whatever the pipeline does (Ctrl-C on the command line); False: it did nothing."""
        return any([client.cancel() for client in (self._pipeline, self._side)])

    def measure_now(self, opened: OpenDocument, request: p.MeasureNow) -> p.CandidatesAnswer:
        """Measure chosen operators as one partition; UsageError while a run is under way."""
        if not request.nodes:
            raise UsageError("measure.now needs the operators that are to be measured")
        for node in request.nodes:
            opened.check_operator(node)
        if opened.running is not None:
            raise UsageError("a run is under way and a second measurement would disturb it")

        job = replace(opened.job(request), settings=opened.document.settings)
        tell = partial(self.tell, opened.handle)
        answer = self._pipeline.job(job, ticket=_TICKET.get(), on_event=tell)
        opened.put_measured(answer.candidates)
        return answer

    def inside_get(self, opened: OpenDocument, request: p.InsideQuery) -> InsideAnswer:
        """Show what a candidate was compiled to, or what a node holds."""
        if request.node is not None:
            opened.check_operator(request.node)
        candidate = opened.candidate(request.candidate) if request.candidate is not None else None
        return self._side_job(replace(opened.job(request), candidate=candidate))

    def export_artifact(self, opened: OpenDocument, request: p.ExportArtifact) -> p.Exported:
        """Write a run's placement to a folder, or return it as an archive's bytes."""
        run = opened.run(request.run)
        if run.placement is None:
            raise UsageError(f"run {request.run} has no placement to export")
        if run.of_profile:
            raise UsageError(
                f"{opened.document.title(run)} is what a runtime did: nothing was placed"
            )
        return self._side_job(replace(opened.job(request), runs=(run,), out=request.path))

    def profile_make(self, opened: OpenDocument, request: p.ProfileMake) -> Run:
        """Profile a document's model in a runtime; its layers are a run from now on."""
        threads = request.settings.threads or physical_cores()
        return self._add_profile(opened, self._side_job(opened.job(request)), threads)

    def profile_read(self, opened: OpenDocument, request: p.ProfileRead) -> Run:
        """Add what a runtime's tools wrote of a document's model to its runs."""
        job = Job(request=request, path=str(user_path(request.path).resolve()))
        return self._add_profile(opened, self._side_job(job))

    @staticmethod
    def _add_profile(opened: OpenDocument, made: p.Profiled, threads: int = 0) -> Run:
        with opened.lock:
            run = run_of_profile(opened.document, *made, threads)
            opened.document.runs.append(run)
        return run

    def export_shapes(self, opened: OpenDocument, request: p.ExportShapes) -> p.Exported:
        """Write an artifact with an entry for each shape, to a folder or as an archive's bytes."""
        placed: list[tuple[OpenDocument, Run]] = []
        for member in opened.all_shapes:
            run = member.placed_run
            if run is None:
                raise UsageError(f"{member.choice.text} has no run yet: run all shapes first")
            placed.append((member, run))
        if len(placed) < 2 and not request.others:
            raise UsageError("the document is open for one shape only")
        job = replace(
            opened.job(request),
            choices=tuple(
                ShapeChoice(dims=member.choice.dims, shapes=member.document.model.shapes)
                for member, _ in placed
            ),
            runs=tuple(run for _, run in placed),
            out=request.path,
        )
        exported = self._side_job(job)
        for _, run in placed:
            run.sharing = exported.sharing
        return exported

    def _side_job(self, job: Job[ChildRequest[Any, Outcome]]) -> Outcome:
        """Do a job of the request being served in a child that is idle, if there is one."""
        client = self._side if self._pipeline.busy else self._pipeline
        return client.job(job, ticket=_TICKET.get())


def _new_id() -> str:
    return "r" + uuid.uuid4().hex[:8]


def _from_records(answer: Callable[[OpenDocument, Any], Any]) -> Callable[..., Any]:
    """Return the handler of a request that is answered from a document's records."""
    return lambda _, opened, request: answer(opened, request)


HANDLERS: dict[type[Request[Any]], Callable[..., Any]] = {
    p.Hello: Engine.hello,
    p.ToolchainsList: Engine.toolchains_list,
    p.ModelOpen: Engine.model_open,
    p.ModelDimensions: Engine.model_dimensions,
    p.ShapesResolve: Engine.shapes_resolve,
    p.ShapesOpen: Engine.shapes_open,
    p.ShapesList: _from_records(answers.shapes_list),
    p.DocumentClose: Engine.document_close,
    p.GraphGet: _from_records(answers.graph_get),
    p.PinsSet: _from_records(answers.pins_set),
    p.RunStart: Engine.run_start,
    p.RunCancel: Engine.run_cancel,
    p.RunSearch: _from_records(answers.run_search),
    p.Enumerate: Engine.enumerate,
    p.CandidatesQuery: _from_records(answers.candidates_query),
    p.Explain: _from_records(answers.explain),
    p.MeasureNow: Engine.measure_now,
    p.InsideQuery: Engine.inside_get,
    p.RunsList: _from_records(answers.runs_list),
    p.RunEdit: _from_records(answers.runs_edit),
    p.ExportArtifact: Engine.export_artifact,
    p.ExportShapes: Engine.export_shapes,
    p.ExportReport: _from_records(answers.export_report),
    p.ProfileMake: Engine.profile_make,
    p.ProfileRead: Engine.profile_read,
    p.SessionOpen: Engine.session_open,
    p.SessionSave: Engine.session_save,
    p.SessionContinue: Engine.session_continue,
}
"""What serves each request: called with the engine, with the document that the request names, if
it names one, and with the request. The server itself does ``request.cancel``."""


@contextmanager
def interruptible(engine: Engine, *, keeps: bool = True) -> Iterator[None]:
    """Have the first Ctrl-C cancel an engine's work, and the second one leave it.

    A batch system's SIGTERM and a closed terminal's SIGHUP do the same (not under ``nohup``).
    Signals are handled as before at the end of the block.

    Args:
        engine: The engine.
        keeps: Whether the first Ctrl-C has a run end with its best placement so far instead, of
            which the engine's listener is told, and the second one cancels it.
    """
    before: dict[int, Any] = {}

    def interrupt(signalled: int, _frame: object) -> None:
        nonlocal keeps
        if keeps and signalled == signal.SIGINT and engine.has_run:
            keeps = False
            engine.tell("", Log(level="warning", text=ENDING))
            engine.keep()
            return
        for number in before:  # the next one ends the process
            at_once = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, at_once)
        if not engine.cancel():
            raise KeyboardInterrupt

    for number in (int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGHUP)):
        handler = signal.getsignal(number)
        # Shells without job control ignore Ctrl-C for what they start beside them; who sends it to
        # this process means it.
        if number == signal.SIGINT or handler == signal.SIG_DFL:
            try:
                signal.signal(number, interrupt)
            except ValueError:
                break  # not the main thread (an embedding program): it handles signals itself
            before[number] = handler
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interruptible_engine(
    listener: Listener | None = None, *, keeps: bool = True
) -> Iterator[Engine]:
    """Make an engine for one command, whose work Ctrl-C stops as ``interruptible`` says.

    Args:
        listener: Takes the engine's events.
        keeps: See ``interruptible``.
    """
    with closing(Engine(listener)) as engine, interruptible(engine, keeps=keeps):
        yield engine
