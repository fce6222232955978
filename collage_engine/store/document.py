"""Holds everything known of one model in one place, as plain records: a document."""

from __future__ import annotations

from dataclasses import dataclass, field

from collage_engine.records.candidate import CandidateRecord, Refusal
from collage_engine.records.graph import GraphRecord, ModelRecord
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import ShapeChoice
from collage_engine.records.toolchain import ToolchainState


@dataclass
class Document:
    """What a session file holds and the service works on."""

    model: ModelRecord
    graph: GraphRecord
    candidates: list[CandidateRecord] = field(default_factory=list)
    """With the costs known so far."""
    without_candidates: dict[str, dict[int, Refusal]] = field(default_factory=dict)
    """Toolchain instance id → operator number → why it has no candidate for it."""
    pins: list[Pin] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    settings: RunSettings = field(default_factory=RunSettings)
    constants: dict[str, float] = field(default_factory=dict)
    """Transition costs in µs used by the search: ``launch``, ``pair:<from>:<to>``."""
    toolchains: list[ToolchainState] = field(default_factory=list)
    """What is known of the toolchains that have candidates: how they are called and drawn."""
    shapes: list[PlacedShape] = field(default_factory=list)
    """The shapes that the model is placed for together, in the user's order; empty where it is for
    one shape. Only what is written to a file and read from one has them: open documents of several
    shapes know each other through the service."""

    @property
    def placed_shapes(self) -> list[tuple[ShapeChoice, Document]]:
        """Return each shape with its document, this one among them, in the user's order."""
        if not self.shapes:
            return [(ShapeChoice(shapes=self.model.shapes), self)]
        return [(shape.choice, shape.document or self) for shape in self.shapes]

    def toolchain_title(self, name: str) -> str:
        """Return a toolchain as its makers write it; its name where no record says that."""
        return next((s.title for s in self.toolchains if s.name == name and s.title), name)

    def continues(self, earlier: Document) -> bool:
        """Return whether ``earlier`` is of the same file, with the same sizes of its inputs."""
        mine, other = self.model, earlier.model
        return (mine.sha256, mine.shapes) == (other.sha256, other.shapes)

    def take_over(self, earlier: Document) -> None:
        """Goes on where ``earlier`` ended: its runs, and what it knew of the same graph."""
        self.runs = list(earlier.runs)
        if earlier.graph == self.graph:
            self.candidates = list(earlier.candidates)
            self.without_candidates = dict(earlier.without_candidates)
            self.constants = dict(earlier.constants)
            self.toolchains = list(earlier.toolchains)

    def run(self, name: str) -> Run | None:
        """Return the run with this id, name or number (``2``, ``Run 2``).

        For ``last`` it is the newest that placed the model; a profile only where none did.
        """
        if name == "last" and self.runs:
            return next((run for run in reversed(self.runs) if not run.of_profile), self.runs[-1])
        for run in reversed(self.runs):
            if name in (run.id, run.name):
                return run
        number = name.lower().removeprefix("run").strip()
        if number.isdecimal() and 1 <= int(number) <= len(self.runs):
            return self.runs[int(number) - 1]
        return None

    def title(self, run: Run) -> str:
        """Return a run's name, or its place among the runs, as the desktop calls it: ``Run 2``."""
        return run.name or f"Run {self.runs.index(run) + 1}"


@dataclass
class PlacedShape:
    """One of the shapes that a model is placed for together."""

    choice: ShapeChoice
    document: Document | None
    """None: it is the document that holds the list."""
