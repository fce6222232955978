"""What a run was asked for, and what it knows by now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from collage_engine.candidates.catalog import CandidateCatalog
from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.run_control import RunControl
from collage_engine.machine.worker import Worker
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.pin import Pin
from collage_engine.records.placement import MachineState, Run
from collage_engine.records.precision import RunTolerance
from collage_engine.records.settings import RunSettings
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.race import Race


@dataclass(frozen=True, kw_only=True)
class RunTask:
    """What a run was asked for, and when it began.

    Attributes:
        open_model: The imported model, with the store.
        settings: The options of the run.
        pins: What the user demands of the placement.
        out: Folder of the artifact; None: nothing is exported.
        run_id: The run's name in its session.
        previous: The run before, which a quick confirmation compares with.
        started_at: When the run began, as ISO 8601 in UTC.
        machine_before: Clocks and load at its beginning.
        builder: The process that builds placements, which has been opening the model since the run
            began; None: one is started when it is needed.
        threads_us: What the fastest whole model took in common rounds, in microseconds by number of
            threads, where this number was the run's to find; the settings then hold the best.
    """

    open_model: OpenModel
    settings: RunSettings
    pins: tuple[Pin, ...]
    out: str | None
    run_id: str
    previous: Run | None
    started_at: str
    machine_before: MachineState
    builder: Worker | None = None
    threads_us: Mapping[int, float] = field(default_factory=dict)

    @property
    def asked(self) -> RunSettings:
        """Return the settings as the user gave them."""
        chosen = bool(self.threads_us)
        return msgspec.structs.replace(self.settings, threads=0) if chosen else self.settings

    @property
    def is_quick(self) -> bool:
        """Tell whether a few contenders are compared and nothing else is done."""
        return self.settings.confirmation == "quick"


@dataclass(frozen=True, kw_only=True)
class RunSamples:
    """Inputs with the reference's outputs, which placements are compared with."""

    all: tuple[Sample, ...]
    """The one that is timed; then the user's other samples, or random ones, on which a promised
    tolerance must hold too."""
    run_tolerance: RunTolerance
    """The bounds on the errors of the model's outputs, and where they come from."""
    not_finite: Mapping[str, float]
    """By output the share of its true values that compare nothing on any sample."""

    @property
    def tolerance(self) -> float:
        """Return the bound on the error of any output, as ``max|y-r| / max|r|``."""
        return self.run_tolerance.value

    @property
    def sample(self) -> Sample:
        """Return the one that is timed."""
        return self.all[0]


@dataclass(eq=False)
class RunState:
    """What a run knows by now: its stages read it, and ``run`` notes in it what they return.

    Attributes:
        task: What the run was asked for; once it is chosen, with its number of threads.
        control: Takes progress and answers; cancels the run.
        catalog: The toolchains and candidates.
        inputs: The candidates with their costs so far.
        samples: The true outputs, which placements are compared with.
        waiting: The whole models that enter after products were chosen that may be rounded.
        race: What every placement enters, once it is open.
    """

    task: RunTask
    control: RunControl
    catalog: CandidateCatalog
    inputs: SearchInputs
    samples: RunSamples
    waiting: Sequence[Contender] = ()
    race: Race = field(init=False)
