"""A document that the engine has open: its records, and what is needed to work on them."""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from collage_engine.planning.document_search import DocumentSearch, is_like
from collage_engine.records.answers import Price, RunUpdate
from collage_engine.records.candidate import CandidateRecord, Cost
from collage_engine.records.placement import Run
from collage_engine.records.protocol import ChildRequest, Job
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import ShapeChoice, ShapeRow
from collage_engine.service.run_client import Ticket
from collage_engine.store.compare import shape_row
from collage_engine.store.document import Document, PlacedShape
from collage_engine.store.session_file import save_session
from collage_engine.support.errors import UsageError

Wanted = TypeVar("Wanted", bound=ChildRequest[Any, Any])


@dataclass(eq=False)
class OpenDocument:
    """One document that is open.

    Runs change it from a thread of their own: what reads or changes several of its parts holds
    ``lock``.
    """

    handle: str
    document: Document
    lock: threading.RLock = field(default_factory=threading.RLock)
    running: Ticket | None = None
    """Of the run under way."""
    provisional: Run | None = None
    """The best answer so far of the run under way, or of one that did not end by itself."""
    searching: threading.Lock = field(default_factory=threading.Lock)
    """Held for a search on what ``snapshot`` gave; never while holding ``lock``."""
    search: DocumentSearch | None = None
    """The last search: it answers until costs, pins or settings change."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """Of the last search; replaced by every search."""

    choice: ShapeChoice = field(init=False)
    """What the user calls its shape."""
    together: list[OpenDocument] = field(default_factory=list)
    """The documents of the same model for several shapes in the user's order, this one among them;
    they share this list. Empty: it is alone."""

    files: dict[Path, set[str]] = field(default_factory=dict)
    """Session files that this document was read from or written to, with the ids of the runs that
    each of them held then."""

    _indexed: list[CandidateRecord] | None = None
    """The list of candidates that ``_places`` is of; a run names thousands, one at a time."""
    _places: dict[str, int] = field(default_factory=dict)
    """Candidate id → place in that list."""

    def __post_init__(self) -> None:
        self.choice = ShapeChoice(shapes=self.document.model.shapes)

    # -- questions ---------------------------------------------------------------------

    @property
    def all_shapes(self) -> list[OpenDocument]:
        """Return the documents that are placed together, this one alone included."""
        return self.together or [self]

    @property
    def placed_run(self) -> Run | None:
        """Return the newest run that has a placement."""
        runs = reversed(self.document.runs)
        return next((run for run in runs if run.placement is not None), None)

    @property
    def row(self) -> ShapeRow | None:
        """Return its line of the table of shapes; None before the first run."""
        run = self.placed_run
        return shape_row(self.choice, self.document.graph, run) if run is not None else None

    def snapshot(self) -> Document:
        """Return a copy of the document, for work during which a run may change it."""
        with self.lock:
            now = copy.copy(self.document)
            now.candidates = list(now.candidates)
            now.runs, now.pins = list(now.runs), list(now.pins)
            return now

    def check_operator(self, node: int) -> None:
        """Raise ``UsageError`` unless there is an operator of this number."""
        operators = len(self.document.graph.nodes)
        if not 0 <= node < operators:
            raise UsageError(f"there is no node {node}: operators are 0…{operators - 1}")

    def run(self, name: str) -> Run:
        """Return the run of this id, name or number; UsageError names those there are."""
        run = self.document.run(name)
        best_so_far = self.provisional
        if run is None and best_so_far is not None and best_so_far.id == name:
            return best_so_far
        if run is None:
            every, title = self.document.runs, self.document.title
            listed = ", ".join(f"{each.id} ({title(each)})" for each in every)
            raise UsageError(f"there is no run {name!r}; runs are {listed or 'none'}")
        return run

    def last_measured_run(self, settings: RunSettings) -> Run | None:
        """Return the newest timed run of the same target, threads, precision and objective, if any.

        A baseline that it did not time, as a quick confirmation leaves out most, has the time of
        the newest run that did.
        """
        runs = [
            run
            for run in self.document.runs
            if not run.of_profile
            and run.placement is not None
            and run.placement.measured_us is not None
            and is_like(run, settings)
        ]
        if not runs:
            return None
        timed = {base.name: base for run in runs for base in run.baselines if base.measured_us}
        baselines = [
            base if base.measured_us else timed.get(base.name, base) for base in runs[-1].baselines
        ]
        return msgspec.structs.replace(runs[-1], baselines=baselines)

    def candidate(self, name: str) -> CandidateRecord:
        """Return the candidate of this id; UsageError when there is none."""
        with self.lock:
            found = next((c for c in self.document.candidates if c.id == name), None)
        if found is None:
            raise UsageError(f"there is no candidate {name!r}")
        return found

    def job(self, request: Wanted) -> Job[Wanted]:
        """Return a request on the model for the process of the run; see ``model_path``."""
        return Job(request=request, path=self.model_path(), shapes=self.document.model.shapes)

    def model_path(self) -> str:
        """Return the model's file; UsageError when it is gone or has changed."""
        model = self.document.model
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
        return str(path)

    # -- changes -----------------------------------------------------------------------

    def bind_file(self, path: Path, held: Document | None) -> None:
        """Note that the document is kept in this file, which holds so much now."""
        runs = [run for _, each in held.placed_shapes for run in each.runs] if held else []
        with self.lock:
            self.files[path.resolve()] = {run.id for run in runs}

    def save(self, path: Path) -> None:
        """Write the document to a session's file; SessionError where that is not possible.

        A document that is placed for several shapes is written with those for the others. What
        another process has added to the file since it was read or written here is kept, and
        belongs to this document from now on.
        """
        with self.lock:
            written = copy.copy(self.document)
            written.shapes = [
                PlacedShape(document.choice, None if document is self else document.snapshot())
                for document in self.together
            ]
            saved = save_session(written, path, self.files.get(path.resolve()))
            self._hold(saved)
            for each, shape in zip(self.together, saved.shapes, strict=True):
                if shape.document is not None:
                    each._hold(shape.document)
            self.bind_file(path, saved)

    def _hold(self, saved: Document) -> None:
        """Take over what a session's file holds of this document."""
        with self.lock:
            self.document.runs, self.document.constants = saved.runs, saved.constants
            self.document.candidates = saved.candidates

    def take(self, outcome: RunUpdate) -> None:
        """Keep what a run found out, also one that was cancelled half-way."""
        with self.lock:
            if outcome.candidates is not None:
                self.document.candidates = outcome.candidates
            if outcome.without_candidates is not None:
                self.document.without_candidates = outcome.without_candidates
            if outcome.constants is not None:
                self.document.constants = outcome.constants
            if outcome.toolchains is not None:
                self.document.toolchains = outcome.toolchains
            elif outcome.run is not None:
                self.document.toolchains = list(outcome.run.toolchains)

    def note_rows(self) -> None:
        """Put the table of shapes into the newest run of each shape, for reports and sessions."""
        rows = [row for row in (member.row for member in self.together) if row is not None]
        for run in (member.placed_run for member in self.together):
            if run is not None:
                run.shapes = rows

    def put_cost(self, candidate: str, cost: Cost) -> None:
        """Give a candidate its cost; one that is not held is left out."""
        with self.lock:
            held = self.document.candidates
            if self._indexed is not held:
                self._indexed, self._places = held, {c.id: k for k, c in enumerate(held)}
            index = self._places.get(candidate)
            if index is not None:
                held[index] = msgspec.structs.replace(held[index], cost=cost)

    def put_measured(self, fresh: Sequence[CandidateRecord]) -> None:
        """Add candidates, or replace those of the same ids, and give equal work their costs.

        Equal work has one cost, wherever in the model it stands.
        """
        with self.lock:
            held = {c.id: c for c in self.document.candidates}
            by_key = {c.key: c.cost for c in fresh if c.key}

            def joined(c: CandidateRecord) -> CandidateRecord:
                older = held.get(c.id, c).cost
                cost = by_key.get(c.key, c.cost).after(older)
                return msgspec.structs.replace(c, cost=cost)

            merged = held | {c.id: c for c in fresh}
            self.document.candidates = [joined(c) for c in merged.values()]
