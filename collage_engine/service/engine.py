"""The engine's methods, for the server and, in process, for the command line.

The engine holds documents as plain records and answers from them; whatever needs TVM, a model
file or a toolchain is done by the pipeline in a child process (``pipeline.client``).
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from collage_engine import __version__
from collage_engine.pipeline.client import PipelineClient
from collage_engine.pipeline.explain import explain_document
from collage_engine.pipeline.problem import search_document
from collage_engine.pipeline.results import Opened, RunOutcome
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.comparison import Comparison
from collage_engine.records.cost import Cost
from collage_engine.records.errors import Cancelled, CollageError, ProtocolError, UsageError
from collage_engine.records.event import Done, Event, Measured
from collage_engine.records.pin import PinVerdict
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.search.api import Search
from collage_engine.service import protocol as p
from collage_engine.session.compare import compare_runs
from collage_engine.session.document import Document
from collage_engine.session.file import load_session, save_session

Listener = Callable[[str, Event], None]


@dataclass
class OpenDocument:
    """A document with what the engine needs to work on it."""

    handle: str
    document: Document
    read_only: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)
    running: threading.Thread | None = None
    by_id: dict[str, int] = field(default_factory=dict)
    """Candidate id → place in the document's list."""
    temporary: tempfile.TemporaryDirectory[str] | None = None
    search: Search | None = None
    """Of the last search: what a change of pins leaves as it was."""
    regrets: dict[str, float | None] = field(default_factory=dict)
    """Of the last search; replaced by every search."""

    def replace_candidates(self, candidates: list[CandidateRecord]) -> None:
        with self.lock:
            self.document.candidates = candidates
            self.by_id = {c.id: k for k, c in enumerate(candidates)}

    def take_over(self, earlier: Document) -> None:
        """Go on where an earlier document of the same model ended."""
        with self.lock:
            self.document.take_over(earlier)
            self.replace_candidates(self.document.candidates)

    def put_cost(self, candidate: str, cost: Cost) -> None:
        with self.lock:
            place = self.by_id.get(candidate)
            if place is not None:
                known = self.document.candidates[place]
                self.document.candidates[place] = msgspec.structs.replace(known, cost=cost)


class Engine:
    """One method a request; ``listener`` receives events with the document they belong to."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener or (lambda document, event: None)
        self._documents: dict[str, OpenDocument] = {}
        self._pipeline = PipelineClient("pipeline")
        self._side = PipelineClient("side")
        """Answers about a document while the pipeline is busy with a run."""
        self._methods: dict[str, Callable[[Any], Any]] = {
            "hello": self.hello,
            "toolchains.list": lambda _: self.toolchains(),
            "model.open": self.model_open,
            "graph.get": self.graph_get,
            "pins.set": self.pins_set,
            "run.preflight": self.run_preflight,
            "run.start": self.run_start,
            "run.cancel": self.run_cancel,
            "run.search": self.run_search,
            "candidates.query": self.candidates_query,
            "explain": self.explain,
            "measure.now": self.measure_now,
            "inside.get": self.inside_get,
            "runs.list": self.runs_list,
            "runs.edit": self.runs_edit,
            "runs.compare": self.runs_compare,
            "export.artifact": self.export_artifact,
            "export.report": self.export_report,
            "session.open": self.session_open,
            "session.save": self.session_save,
        }

    def request(self, method: str, params: Any) -> Any:
        """Serve one request. Raises CollageError with the sentence to show."""
        return self._methods[method](params)

    def close(self) -> None:
        """Stop every child; what was measured is in the store."""
        self._pipeline.close()
        self._side.close()
        for opened in self._documents.values():
            if opened.temporary:
                opened.temporary.cleanup()

    # -- engine and machine ------------------------------------------------------------

    def hello(self, params: p.Hello) -> p.HelloAnswer:
        import platform

        from collage_engine.machine.device import device

        if params.version != p.VERSION:
            raise ProtocolError(
                f"the client speaks protocol version {params.version}, this engine "
                f"({__version__}) speaks {p.VERSION}: install the same version on both sides"
            )
        return p.HelloAnswer(
            version=p.VERSION, engine=__version__, device=device(), host=platform.node()
        )

    def toolchains(self, *, anew: bool = False) -> p.Toolchains:
        from collage_engine.toolchains.registry import probe_all

        return p.Toolchains(toolchains=tuple(probe_all(anew=anew)))

    # -- documents ---------------------------------------------------------------------

    def model_open(self, params: p.ModelOpen) -> p.ModelAnswer:
        temporary = None
        if params.content is not None:
            temporary = tempfile.TemporaryDirectory(prefix="collage-model-")
            path = Path(temporary.name) / (Path(params.name or "model.onnx").name)
            path.write_bytes(params.content)
        elif params.path:
            path = Path(params.path).expanduser()
        else:
            raise UsageError("model.open needs a path or the file's content")
        opened: Opened = self._pipeline.job("open", path=str(path.resolve()), shapes=params.shapes)
        document = Document(model=opened.model, graph=opened.graph)
        return self._admit(document, temporary=temporary)

    def _admit(
        self,
        document: Document,
        *,
        read_only: bool = False,
        note: str | None = None,
        temporary: tempfile.TemporaryDirectory[str] | None = None,
    ) -> p.ModelAnswer:
        handle = "d" + uuid.uuid4().hex[:8]
        opened = OpenDocument(handle, document, read_only=read_only, temporary=temporary)
        opened.replace_candidates(document.candidates)
        self._documents[handle] = opened
        return p.ModelAnswer(document=handle, model=document.model, read_only=read_only, note=note)

    def document(self, handle: str) -> OpenDocument:
        try:
            return self._documents[handle]
        except KeyError:
            raise UsageError(f"there is no open document {handle!r}") from None

    def enumerate(self, handle: str, settings: RunSettings) -> list[CandidateRecord]:
        """Find the document's candidates, with the costs that are stored; nothing is measured."""
        opened = self.document(handle)
        outcome: RunOutcome = self._idle_client().job(
            "enumerate", **self._model_arguments(opened), settings=settings
        )
        self._take(opened, outcome)
        return list(opened.document.candidates)

    def graph_get(self, params: p.Document) -> p.GraphAnswer:
        document = self.document(params.document).document
        return p.GraphAnswer(graph=document.graph, pins=tuple(document.pins))

    def session_open(self, params: p.SessionOpen) -> p.ModelAnswer:
        document, note = load_session(Path(params.path).expanduser())
        return self._admit(document, read_only=note is not None, note=note)

    def session_save(self, params: p.SessionSave) -> p.Exported:
        opened = self.document(params.document)
        with opened.lock:
            save_session(opened.document, Path(params.path).expanduser())
        return p.Exported(path=params.path)

    # -- pins and search ---------------------------------------------------------------

    def pins_set(self, params: p.PinsSet) -> p.PinsAnswer:
        opened = self.document(params.document)
        self._writable(opened)
        operators = opened.document.model.nodes
        for pin in params.pins:
            if not pin.nodes or min(pin.nodes) < 0 or max(pin.nodes) >= operators:
                raise UsageError(
                    f"pin {pin.text or pin.kind!r} is on a node the model has not "
                    f"(operators are 0…{operators - 1})"
                )
        with opened.lock:
            opened.document.pins = list(params.pins)
        return p.PinsAnswer(
            verdicts=tuple(
                PinVerdict(pin=pin.text or pin.kind, state="pending") for pin in params.pins
            )
        )

    def run_search(self, params: p.RunSearch) -> p.SearchAnswer:
        opened = self.document(params.document)
        with opened.lock:
            if not opened.document.candidates:
                raise UsageError("nothing has been measured yet: start a run first")
            answer, opened.search = search_document(opened.document, params.settings, opened.search)
            opened.regrets = answer.regrets
        return answer

    def candidates_query(self, params: p.CandidatesQuery) -> p.CandidatesAnswer:
        opened = self.document(params.document)
        wanted = set(params.nodes)
        with opened.lock:
            found = [
                c
                for c in opened.document.candidates
                if not wanted or not wanted.isdisjoint(c.nodes)
            ]
        shown = found[: params.limit]
        return p.CandidatesAnswer(
            candidates=tuple(shown),
            regrets={c.id: opened.regrets[c.id] for c in shown if c.id in opened.regrets},
            total=len(found),
        )

    def explain(self, params: p.Explain) -> p.ExplainAnswer:
        opened = self.document(params.document)
        if not 0 <= params.node < opened.document.model.nodes:
            raise UsageError(
                f"there is no node {params.node}: operators are 0…{opened.document.model.nodes - 1}"
            )
        with opened.lock:
            answer, opened.search = explain_document(opened.document, params.node, opened.search)
        return answer

    # -- runs --------------------------------------------------------------------------

    def run_preflight(self, params: p.RunStart) -> p.PreflightAnswer:
        opened = self.document(params.document)
        answer, outcome = self._idle_client().job(
            "preflight", **self._model_arguments(opened), settings=params.settings
        )
        if opened.running is None and not opened.read_only:
            self._take(opened, outcome)
        return answer

    def run_start(self, params: p.RunStart) -> p.RunStarted:
        opened = self.document(params.document)
        self._writable(opened)
        name = "r" + uuid.uuid4().hex[:8]
        with opened.lock:
            if any(d.running is not None for d in self._documents.values()):
                raise UsageError("a run is under way: cancel it, or wait for it to end")
            thread = threading.Thread(
                target=self._run_in_thread, args=(opened, params.settings, name), daemon=True
            )
            opened.running = thread
        thread.start()
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
            import traceback

            traceback.print_exc()
            done = Done(state="failed", reason=f"the engine failed: {error!r}")
        finally:
            opened.running = None
        self._listener(opened.handle, done)

    def run(
        self, handle: str, settings: RunSettings, *, out: str | None = None, name: str = ""
    ) -> Run:
        """The whole pipeline, blocking. Raises Cancelled after ``cancel``; InfeasibleError."""
        opened = self.document(handle)
        settings = msgspec.structs.replace(settings)

        def on_event(event: object) -> None:
            if isinstance(event, RunOutcome):
                self._take(opened, event)
                return
            assert isinstance(event, Event)
            if isinstance(event, Measured):
                opened.put_cost(event.candidate, event.cost)
            self._listener(handle, event)

        outcome: RunOutcome = self._pipeline.job(
            "run",
            on_event=on_event,
            **self._model_arguments(opened),
            settings=settings,
            pins=tuple(opened.document.pins),
            out=out,
            run_id=name or "r" + uuid.uuid4().hex[:8],
        )
        self._take(opened, outcome)
        assert outcome.run is not None
        with opened.lock:
            opened.document.settings = settings
            opened.document.runs.append(outcome.run)
            # Regrets shown from now on are those at the costs of this run.
            answer, opened.search = search_document(opened.document, settings, None)
            opened.regrets = answer.regrets
        return outcome.run

    def _take(self, opened: OpenDocument, outcome: RunOutcome) -> None:
        """Keep what a run found out, also one that was cancelled half-way."""
        with opened.lock:
            if outcome.candidates is not None:
                opened.replace_candidates(outcome.candidates)
            if outcome.not_offered is not None:
                opened.document.not_offered = outcome.not_offered
            if outcome.constants is not None:
                opened.document.constants = outcome.constants

    def run_cancel(self, params: p.RunCancel) -> None:
        self.document(params.document)
        self._pipeline.cancel()

    def cancel(self) -> None:
        """Stop whatever the pipeline does (Ctrl-C on the command line)."""
        self._pipeline.cancel()

    def measure_now(self, params: p.MeasureNow) -> p.CandidatesAnswer:
        opened = self.document(params.document)
        self._writable(opened)
        if opened.running is not None:
            raise UsageError("a run is under way and a second measurement would disturb it")

        def on_event(event: object) -> None:
            assert isinstance(event, Event)
            self._listener(opened.handle, event)

        fresh: list[CandidateRecord] = self._pipeline.job(
            "measure",
            on_event=on_event,
            **self._model_arguments(opened),
            settings=opened.document.settings,
            nodes=params.nodes,
            toolchains=params.toolchains,
            longer=params.longer,
        )
        with opened.lock:
            known = dict(opened.by_id)
            merged = list(opened.document.candidates)
            for candidate in fresh:
                if candidate.id in known:
                    merged[known[candidate.id]] = candidate
                else:
                    merged.append(candidate)
            # Equal work has one cost, wherever in the model it stands.
            by_key = {c.key: c.cost for c in fresh if c.key}
            merged = [
                msgspec.structs.replace(c, cost=by_key[c.key]) if c.key in by_key else c
                for c in merged
            ]
            opened.replace_candidates(merged)
        return p.CandidatesAnswer(candidates=tuple(fresh), total=len(fresh))

    def inside_get(self, params: p.InsideQuery) -> p.InsideAnswer:
        opened = self.document(params.document)
        candidate = None
        if params.candidate is not None:
            place = opened.by_id.get(params.candidate)
            if place is None:
                raise UsageError(f"there is no candidate {params.candidate!r}")
            candidate = opened.document.candidates[place]
        return self._idle_client().job(
            "inside", **self._model_arguments(opened), candidate=candidate, node=params.node
        )

    # -- runs, comparisons, exports ----------------------------------------------------

    def runs_list(self, params: p.Document) -> p.RunsAnswer:
        return p.RunsAnswer(runs=tuple(self.document(params.document).document.runs))

    def runs_edit(self, params: p.RunEdit) -> p.RunsAnswer:
        opened = self.document(params.document)
        self._writable(opened)
        run = self.find_run(opened, params.run)
        with opened.lock:
            if params.delete:
                opened.document.runs.remove(run)
            if params.name is not None:
                run.name = params.name
            if params.note is not None:
                run.note = params.note
        return p.RunsAnswer(runs=tuple(opened.document.runs))

    def runs_compare(self, params: p.RunsCompare) -> Comparison:
        opened = self.document(params.document)
        return compare_runs(self.find_run(opened, params.a), self.find_run(opened, params.b))

    def find_run(self, opened: OpenDocument, name: str) -> Run:
        run = opened.document.run(name)
        if run is None:
            known = ", ".join(f"{r.id} ({r.name})" if r.name else r.id for r in
                              opened.document.runs) or "none"  # fmt: skip
            raise UsageError(f"there is no run {name!r}; runs are {known}")
        return run

    def export_artifact(self, params: p.ExportArtifact) -> p.Exported:
        opened = self.document(params.document)
        run = self.find_run(opened, params.run)
        if run.placement is None:
            raise UsageError(f"run {params.run} has no placement to export")
        content: bytes | None = self._idle_client().job(
            "export", **self._model_arguments(opened), run=run, out=params.path
        )
        return p.Exported(path=params.path, content=content)

    def export_report(self, params: p.ExportReport) -> p.Exported:
        from collage_engine.report.report import render

        opened = self.document(params.document)
        run = self.find_run(opened, params.run) if params.run else None
        with opened.lock:
            content = render(opened.document, params.format, run, peers=params.peers)
            return p.Exported(content=content)

    # ----------------------------------------------------------------------------------

    def _idle_client(self) -> PipelineClient:
        return self._side if self._pipeline.busy else self._pipeline

    def _writable(self, opened: OpenDocument) -> None:
        if opened.read_only:
            raise UsageError("this session is open for reading only: save a copy to change it")

    def _model_arguments(self, opened: OpenDocument) -> dict[str, Any]:
        model = opened.document.model
        path = Path(model.path)
        if not path.is_file():
            raise UsageError(
                f"the model {model.path} of this session is not on this machine: "
                "what needs the model itself (measuring, building) is not possible"
            )
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != model.sha256:
            raise UsageError(
                f"{model.path} has changed since the session was made: open the model again"
            )
        return {"path": str(path), "shapes": model.shapes}
