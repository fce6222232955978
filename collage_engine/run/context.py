"""What the stages of one run share: what was asked for, and what is known so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from collage_engine.candidates.inputs import model_tolerance
from collage_engine.candidates.open_model import Workspace
from collage_engine.control.budget import Budget
from collage_engine.control.run_control import RunControl
from collage_engine.model.importer import ImportedModel
from collage_engine.planning.problem import make_problem
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.graph import GraphRecord
from collage_engine.records.pin import Pin
from collage_engine.records.settings import RunSettings
from collage_engine.records.tuning import TuneCounts
from collage_engine.search.api import Search
from collage_engine.search.doubt import Doubt, doubt
from collage_engine.search.problem import Answer, Problem
from collage_engine.search.sittings import DRIFT
from collage_engine.trials.contender import Sample

DRAWS = 60
DOUBT_S = 0.4
"""For resampling, at most; the search itself is to be felt as immediate."""


@dataclass
class RunState:
    """One run: the stages (``stage_*.py``) read it and write down what they find out."""

    workspace: Workspace
    control: RunControl
    settings: RunSettings
    pins: tuple[Pin, ...]
    out: str | None
    """Folder of the artifact; None when nothing is to be exported."""
    run_id: str
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    records: list[CandidateRecord] = field(default_factory=list)
    """All candidates, with what is known of their costs."""
    constants: dict[str, float] = field(default_factory=dict)
    """What hand-overs cost here and what the runtimes weigh, by the names that the search knows."""
    drift: float = DRIFT
    """How much medians of the same work differ between sittings, until the store knows better."""
    tuning: TuneCounts | None = None
    further: tuple[Sample, ...] = ()
    """Inputs besides the run's own on which a promised tolerance must be kept."""
    budget: Budget = field(init=False)
    """For measuring candidates; it begins anew when the measuring does."""
    tolerance: float = field(init=False)
    """Of a whole model's output, on max|y-r| / max|r|."""

    def __post_init__(self) -> None:
        self.budget = Budget(self.settings.budget_s)
        self.tolerance = self.settings.tolerance or model_tolerance(self.model, self.settings)

    @property
    def model(self) -> ImportedModel:
        return self.workspace.model

    @property
    def graph(self) -> GraphRecord:
        return self.workspace.model.graph.record

    def by_id(self) -> dict[str, CandidateRecord]:
        return {record.id: record for record in self.records}

    def problem(self, records: Sequence[CandidateRecord] | None = None) -> Problem:
        """The search's problem of these candidates, or of all, under the run's pins and limits."""
        offered = self.records if records is None else records
        return make_problem(self.graph, offered, self.pins, self.constants, self.settings)

    def doubt(
        self, problem: Problem, answer: Answer, search: Search, drift: float | None = None
    ) -> Doubt:
        """How sure the cover is, by resampling the repeats and what sittings differ by: the
        problem's ``drift`` by default."""
        return doubt(
            problem,
            answer,
            repeats={r.id: r.cost.repeats_us for r in self.records if r.cost.repeats_us},
            same={r.id: r.key for r in self.records if r.key},
            draws=DRAWS,
            time_limit_s=DOUBT_S,
            search=search,
            drift=drift,
        )
