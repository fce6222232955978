"""Carries out the service's requests, for the server and, in process, the command line.

The engine holds documents as plain records and answers from them (``answers``); whatever needs
TVM, a model file or a toolchain is done by the pipeline in a child process (``run_client``).
"""

from __future__ import annotations

import logging
import tempfile
import threading
import uuid
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec

from collage_engine.machine.device import physical_cores
from collage_engine.machine.folders import Scratch
from collage_engine.planning.document_search import search_document
from collage_engine.records import jobs
from collage_engine.records.answers import InsideAnswer, RunUpdate
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.event import Done, Event, Measured, Probing, Provisional
from collage_engine.records.placement import Profile, Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import MOST_SHAPES, OpenSizes, PaddingProofs, ShapeChoice
from collage_engine.records.toolchain import ToolchainState
from collage_engine.records.versions import SERVICE_PROTOCOL, __version__
from collage_engine.service import answers
from collage_engine.service import protocol as p
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

    def request(self, method: str, params: Any, ticket: Ticket | None = None) -> Any:
        """Serve one request: ``runs.list`` by ``runs_list``, of ``answers`` or of the engine.

        Args:
            method: One of the protocol's methods.
            params: Its parameters, as the protocol's struct.
            ticket: By which ``cancel_request`` stops it.

        Raises:
            CollageError: The sentence to show; ``Cancelled`` after ``cancel_request``.
        """
        token = _TICKET.set(ticket)
        try:
            name = method.replace(".", "_")
            if hasattr(answers, name):
                return getattr(answers, name)(self.document(params.document), params)
            return getattr(self, name)(params)
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
        for opened in self._documents.values():
            if opened.temporary:
                opened.temporary.cleanup()
        self._scratch.close()

    def _listener(self, document: str, event: Event) -> None:
        """Tell the listener of an event; its failures are logged."""
        if self._heard_by is None:
            return
        try:
            self._heard_by(document, event)
        except Exception:
            _LOG.warning("the listener of events failed; the work goes on", exc_info=True)

    # -- engine and machine ------------------------------------------------------------

    def hello(self, params: p.Hello) -> p.HelloAnswer:
        """Say which engine and machine this is; ProtocolError to a client of another version."""
        import platform

        from collage_engine.machine.device import device

        if params.version != SERVICE_PROTOCOL:
            raise ProtocolError(
                f"the client speaks protocol version {params.version}, this engine "
                f"({__version__}) speaks {SERVICE_PROTOCOL}: install the same version on both sides"
            )
        return p.HelloAnswer(
            version=SERVICE_PROTOCOL, engine=__version__, device=device(), host=platform.node()
        )

    def toolchains_list(self, params: None) -> p.Toolchains:
        """Probe every toolchain."""
        return self.toolchains()

    def toolchains(self, *, anew: bool = False) -> p.Toolchains:
        """Probe every toolchain; ``anew`` does not trust what was found minutes ago.

        The listener is told of each for which a process is started, since that may take long.
        """
        from collage_engine.toolchains.registry import all_names, probe_all

        names = all_names()

        def on_child(name: str) -> None:
            self._listener("", Probing(number=names.index(name) + 1, total=len(names)))

        return p.Toolchains(toolchains=tuple(probe_all(anew=anew, on_child=on_child)))

    # -- documents ---------------------------------------------------------------------

    def model_open(self, params: p.ModelOpen) -> p.ModelAnswer:
        """Import a model; UsageError or ModelError says what is wrong with it."""
        path, temporary = self._model_file(params)
        shapes = params.shapes
        if params.inputs_npz is not None or () in shapes.values():
            (shapes,) = self.input_shapes(path, (ShapeChoice(shapes=shapes),), params.inputs_npz)
        opened = self._admit(self._imported(path, shapes), temporary)
        return p.ModelAnswer(document=opened.handle, model=opened.document.model)

    def _model_file(
        self, params: p.ModelOpen
    ) -> tuple[Path, tempfile.TemporaryDirectory[str] | None]:
        """Return a model's file, and the folder that goes with it where it came by value."""
        if params.content is not None:
            folder = self._scratch.path
            temporary = tempfile.TemporaryDirectory(prefix="collage-model-", dir=folder)
            path = Path(temporary.name) / file_name(params.name or "model.onnx")
            path.write_bytes(params.content)
            return path, temporary
        if not params.path:
            raise UsageError("model.open needs a path or the file's content")
        path = user_path(params.path)
        readable = str(path).encode("utf-8", "backslashreplace").decode()
        if readable != str(path):
            raise UsageError(f"the name of the model file is not UTF-8 text: {readable}")
        return path, None

    def _imported(self, path: Path, shapes: dict[str, tuple[int, ...]]) -> Document:
        opened = self._side_job(jobs.OpenModelJob(path=str(path.resolve()), shapes=shapes))
        return Document(model=opened.model, graph=opened.graph)

    def model_dimensions(self, params: p.ModelOpen) -> OpenSizes:
        """Say which sizes of its inputs a model leaves open; nothing is imported."""
        path, temporary = self._model_file(params)
        try:
            return self._side_job(jobs.DimensionsJob(path=str(path.resolve())))
        finally:
            if temporary is not None:
                temporary.cleanup()

    def shapes_open(self, params: p.ShapesOpen) -> p.ShapesAnswer:
        """Open a model for several shapes, as documents that know each other.

        Raises:
            UsageError: A choice does not fit the model, or two give the same shapes.
            ModelError: The model cannot have one of the shapes.
        """
        base = self.document(params.document) if params.document else None
        if not params.choices or len(params.choices) > MOST_SHAPES:
            raise UsageError(f"shapes.open needs 1 to {MOST_SHAPES} shapes")
        temporary = None
        if base is not None:
            if any(member.running is not None for member in base.all_shapes):
                raise UsageError("a run is under way: cancel it, or wait for it to end")
            path = Path(base.document.model.path)
        elif params.model is not None:
            path, temporary = self._model_file(params.model)
        else:
            raise UsageError("shapes.open needs a model or a document")
        sizes = self.input_shapes(path, params.choices)
        for place, shapes in enumerate(sizes):
            if shapes in sizes[:place]:
                same = params.choices[sizes.index(shapes)].text
                raise UsageError(
                    f"{params.choices[place].text} and {same} are the same shapes: name one of them"
                )
        before = base.all_shapes if base is not None else []
        members: list[OpenDocument] = []
        for choice, shapes in zip(params.choices, sizes, strict=True):
            opened = next((m for m in before if m.document.model.shapes == shapes), None)
            if opened is None:
                try:
                    document = self._imported(path, shapes)
                except (ModelError, UsageError) as error:
                    sentence = f"{choice.text} does not fit the model: {error}"
                    raise type(error)(sentence) from error
                opened = self._admit(document, base.temporary if base is not None else temporary)
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
        return answers.shapes_list(members[0], p.Document(document=""))

    def padding(self, path: str | Path, dims: Sequence[str]) -> PaddingProofs:
        """Prove along which of a model's dimensions inputs may be padded."""
        path = str(user_path(str(path)).resolve())
        return self._side_job(jobs.PaddingJob(path=path, dims=tuple(dims)))

    def input_shapes(
        self,
        path: str | Path,
        choices: Sequence[ShapeChoice],
        inputs_npz: bytes | None = None,
    ) -> tuple[dict[str, tuple[int, ...]], ...]:
        """Return the sizes of a model's inputs that values for its symbolic dimensions give.

        Args:
            path: The model's file.
            choices: What the user asked for.
            inputs_npz: The user's representative inputs, which say what the choices leave open.

        Returns:
            For each choice the sizes of inputs by name, as ``model.open`` takes them.

        Raises:
            UsageError: The model has no such dimension, or a value contradicts it.
            ModelError: The file is no model.
        """
        return self._side_job(
            jobs.ResolveShapesJob(
                path=str(user_path(str(path)).resolve()),
                choices=tuple(choices),
                inputs_npz=inputs_npz,
            )
        )

    def _admit(
        self, document: Document, temporary: tempfile.TemporaryDirectory[str] | None = None
    ) -> OpenDocument:
        opened = OpenDocument("d" + uuid.uuid4().hex[:8], document, temporary=temporary)
        self._documents[opened.handle] = opened
        return opened

    def document_close(self, params: p.Document) -> None:
        """Forget a document; its run, if it has one, is stopped."""
        opened = self.document(params.document)
        if opened.running is not None:
            self._pipeline.cancel(opened.running)
        self._forget_document(opened)

    def _forget_document(self, opened: OpenDocument) -> None:
        self._documents.pop(opened.handle, None)
        if opened in opened.together:
            opened.together.remove(opened)
        path = opened.document.model.path
        others = (other.document.model.path for other in list(self._documents.values()))
        if opened.temporary and path not in others:
            opened.temporary.cleanup()

    def document(self, handle: str) -> OpenDocument:
        """Return the open document of this handle; UsageError where there is none."""
        try:
            return self._documents[handle]
        except KeyError:
            raise UsageError(f"there is no open document {handle!r}") from None

    def enumerate(self, handle: str, settings: RunSettings) -> list[CandidateRecord]:
        """Find the document's candidates, with the costs that are stored; nothing is measured."""
        opened = self.document(handle)
        job = jobs.MenuJob(**opened.model_arguments(), settings=settings)
        opened.take(self._side_job(job))
        return list(opened.document.candidates)

    def session_open(self, params: p.SessionOpen) -> p.ModelAnswer:
        """Open a session's file."""
        path = user_path(params.path)
        document = load_session(path)
        opened = self._admit(document)
        opened.goes_on_in(path, document)
        shapes, document.shapes = document.shapes, []
        members: list[OpenDocument] = []
        for shape in shapes:
            member = opened if shape.document is None else self._admit(shape.document)
            member.choice, member.together = shape.choice, members
            members.append(member)
        together = answers.shapes_list(opened, p.Document(document=opened.handle))
        return p.ModelAnswer(document=opened.handle, model=document.model, shapes=together.entries)

    def continue_from(self, handle: str, path: Path, choice: ShapeChoice | None = None) -> None:
        """Take over what a session's file holds of a model, if there is one, to save to it again.

        Each document of the model for which the file has the same shape goes on with its runs.
        Shapes that only the file has are opened beside them, so that saving keeps them.

        Args:
            handle: A document of the model.
            path: The file.
            choice: What the user calls the shape of a document that is alone.

        Raises:
            UsageError: What is at ``path`` is no session of this model; or the model is open for
                one shape, and the file holds one other shape.
        """
        opened = self.document(handle)
        held = earlier_session(path)
        opened.goes_on_in(path, held)
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
        if alone and choice is not None:
            opened.choice = choice
        for its_choice, document in held.placed_shapes:
            member = next((m for m in members if m.document.continues(document)), None)
            if member is None:
                member = self._admit(document)
                member.choice = its_choice
                members.append(member)
            else:
                member.take_over(document)
                if alone:
                    member.choice = its_choice
        if several:
            for member in members:
                member.together, member.document.shapes = members, []

    def session_save(self, params: p.SessionSave) -> p.Exported:
        """Write a document to a session's file."""
        opened = self.document(params.document)
        opened.save(user_path(params.path))
        return p.Exported(path=params.path)

    # -- runs --------------------------------------------------------------------------

    def run_start(self, params: p.RunStart) -> p.RunStarted:
        """Start a run in a thread of its own; UsageError while another is under way."""
        opened = self.document(params.document)
        name = "r" + uuid.uuid4().hex[:8]
        with self._starting:
            if any(d.running is not None for d in list(self._documents.values())):
                raise UsageError("a run is under way: cancel it, or wait for it to end")
            opened.running = Ticket()
        threading.Thread(
            target=self._run_in_thread, args=(opened, params.settings, name), daemon=True
        ).start()
        return p.RunStarted(run=name)

    def _run_in_thread(self, opened: OpenDocument, settings: RunSettings, name: str) -> None:
        try:
            self.run(opened.handle, settings, name=name)
            done = Done(state="finished", run=name)
        except Cancelled:
            done = Done(state="cancelled", reason="cancelled; what was measured is kept")
        except CollageError as error:
            done = Done(state="failed", reason=str(error))
        except Exception as error:
            _LOG.exception("the run failed by a defect")
            done = Done(state="failed", reason=f"the engine failed: {error!r}")
        finally:
            opened.running = None
        self._listener(opened.handle, done)

    def run(
        self,
        handle: str,
        settings: RunSettings,
        *,
        out: str | None = None,
        name: str = "",
        spent_s: float = 0.0,
    ) -> Run:
        """Do a whole run and return its document; it does not return before the run has ended.

        Args:
            handle: The document.
            settings: The options of the run.
            out: Folder of the artifact; None: nothing is exported.
            name: The run's id; empty: a new one.
            spent_s: Seconds of the run's budget that were spent before, on opening the model.

        Raises:
            Cancelled: It was cancelled; what was measured is kept.
            InfeasibleError: No placement satisfies the pins and limits.
            ArtifactError: The artifact cannot be written; the document has the run.
        """
        opened = self.document(handle)
        settings = msgspec.structs.replace(settings)

        def on_event(event: object) -> None:
            if isinstance(event, RunUpdate):
                self._take(opened, event, settings)
                return
            assert isinstance(event, Event)
            if isinstance(event, Measured):
                opened.put_cost(event.candidate, event.cost)
            if isinstance(event, Provisional):
                opened.provisional = event.run
            self._listener(handle, event)

        quick = settings.confirmation == "quick"
        ticket = opened.running or Ticket()
        self._runs.add(ticket)
        opened.provisional = None
        try:
            job = jobs.RunJob(
                **opened.model_arguments(),
                settings=settings,
                pins=tuple(opened.document.pins),
                out=out,
                run_id=name or "r" + uuid.uuid4().hex[:8],
                previous=opened.last_measured_run(settings) if quick else None,
                spent_s=spent_s,
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
            # Regrets shown from now on are those at the costs of this run.
            now = opened.snapshot()
            answer, opened.search = search_document(now, settings, None, run.placement)
            opened.regrets, opened.regret_bounds = answer.regrets, answer.regret_bounds
        timed = run.placement is not None and run.placement.measured_us is not None
        if timed and [each.pin for each in run.pins] == [pin.written for pin in now.pins]:
            run.pins = list(answer.verdicts)  # priced by what was measured, earlier runs included

    def run_cancel(self, params: p.RunCancel) -> None:
        """Stop a document's run at once, or with the best placement so far; ``done`` follows."""
        running = self.document(params.document).running
        if running is None:
            return
        if params.keep:
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

    def measure_now(self, params: p.MeasureNow) -> p.CandidatesAnswer:
        """Measure chosen operators as one partition; UsageError while a run is under way."""
        opened = self.document(params.document)
        if not params.nodes:
            raise UsageError("measure.now needs the operators that are to be measured")
        for node in params.nodes:
            opened.must_have(node)
        if opened.running is not None:
            raise UsageError("a run is under way and a second measurement would disturb it")

        def on_event(event: object) -> None:
            assert isinstance(event, Event)
            self._listener(opened.handle, event)

        job = jobs.MeasureJob(
            **opened.model_arguments(),
            settings=opened.document.settings,
            nodes=params.nodes,
            toolchains=params.toolchains,
            longer=params.longer,
        )
        fresh = self._pipeline.job(job, ticket=_TICKET.get(), on_event=on_event)
        opened.put_measured(fresh)
        return p.CandidatesAnswer(candidates=tuple(fresh))

    def inside_get(self, params: p.InsideQuery) -> InsideAnswer:
        """Show what a candidate was compiled to, or the weights of a node."""
        opened = self.document(params.document)
        if params.node is not None:
            opened.must_have(params.node)
        candidate = opened.candidate(params.candidate) if params.candidate is not None else None
        return self._side_job(
            jobs.InspectJob(**opened.model_arguments(), candidate=candidate, node=params.node)
        )

    def export_artifact(self, params: p.ExportArtifact) -> p.Exported:
        """Write a run's placement to a folder, or return it as an archive's bytes."""
        opened = self.document(params.document)
        run = opened.run(params.run)
        if run.placement is None:
            raise UsageError(f"run {params.run} has no placement to export")
        if run.of_profile:
            raise UsageError(
                f"{opened.document.title(run)} is what a runtime did: nothing was placed"
            )
        content = self._side_job(
            jobs.ExportJob(**opened.model_arguments(), run=run, out=params.path)
        )
        return p.Exported(path=params.path, content=content)

    def profile(self, handle: str, settings: RunSettings, toolchain: str) -> Run:
        """Profile a document's model in a runtime; its layers are a run from now on."""
        arguments = self.document(handle).model_arguments()
        job = jobs.ProfileJob(**arguments, settings=settings, toolchain=toolchain)
        threads = settings.threads or physical_cores()
        return self._add_profile(handle, *self._side_job(job), threads)

    def read_profile(self, handle: str, file: str) -> Run:
        """Add what a runtime's tools wrote of a document's model to its runs."""
        return self._add_profile(handle, *self._side_job(jobs.ReadProfileJob(path=file)))

    def _add_profile(
        self, handle: str, profile: Profile, about: ToolchainState, threads: int = 0
    ) -> Run:
        opened = self.document(handle)
        with opened.lock:
            run = run_of_profile(opened.document, profile, about, threads)
            opened.document.runs.append(run)
        return run

    def annotate(self, handle: str, notes: dict[str, dict[str, str]], out: str) -> None:
        """Write a document's model to a file, with metadata by the names of its nodes."""
        path = self.document(handle).model_arguments()["path"]
        self._side_job(jobs.AnnotateJob(path=path, notes=notes, out=out))

    def export_shapes(self, params: p.ExportShapes) -> p.Exported:
        """Write an artifact with an entry for each shape, to a folder or as an archive's bytes."""
        opened = self.document(params.document)
        placed: list[tuple[OpenDocument, Run]] = []
        for member in opened.all_shapes:
            run = member.placed_run
            if run is None:
                raise UsageError(f"{member.choice.text} has no run yet: run all shapes first")
            placed.append((member, run))
        if len(placed) < 2:
            raise UsageError("the document is open for one shape only")
        content: bytes | None
        job = jobs.ExportShapesJob(
            path=opened.model_arguments()["path"],
            members=tuple(
                (member.document.model.shapes, member.choice.dims, run) for member, run in placed
            ),
            out=params.path,
            nearest=params.nearest,
        )
        content, sharing = self._side_job(job)
        for _, run in placed:
            run.sharing = sharing
        return p.Exported(path=params.path, content=content, sharing=sharing)

    def _side_job(self, job: jobs.Job[jobs.Answer]) -> jobs.Answer:
        """Do a job of the request being served in a child that is idle, if there is one."""
        client = self._side if self._pipeline.busy else self._pipeline
        return client.job(job, ticket=_TICKET.get())
