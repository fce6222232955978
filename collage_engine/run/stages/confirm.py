"""The stages that time the best covers and all baselines end to end, and choose the winner."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collage_engine.candidates.menu import Menu
from collage_engine.candidates.open_model import OpenModel
from collage_engine.candidates.pins import breaks_pin
from collage_engine.control.run_control import RunControl
from collage_engine.partition.call_graph import call_graph
from collage_engine.planning.limits import export_refusal, runtime_limits
from collage_engine.records.counted import counted
from collage_engine.records.placement import Placement
from collage_engine.run.chosen_placement import chosen_placement
from collage_engine.run.problem_data import ProblemData
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.trials.baselines import COLLAGE, baselines
from collage_engine.trials.confirmation import Confirmation, confirm
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.placement_process import TrialModel
from collage_engine.trials.runner import TrialRunner


@dataclass(frozen=True, kw_only=True)
class ContenderInputs:
    """The best covers and what baselines there are."""

    open_model: OpenModel
    menu: Menu
    data: ProblemData
    measuring: Measuring
    placements: tuple[Placement, ...]


@dataclass(frozen=True, kw_only=True)
class ContenderList:
    """Everything that is timed end to end: the best covers, then the baselines."""

    contenders: tuple[Contender, ...]


class ListContenders:
    """Lists what takes part in the confirmation."""

    name = "build"
    inputs = ContenderInputs

    def run(self, inputs: ContenderInputs, control: RunControl) -> ContenderList:
        """List the placements and all baselines."""
        # From here on whole models are timed: no other child may hold memory or processors.
        inputs.measuring.close()
        data, placements = inputs.data, inputs.placements
        with control.stage("build") as report:
            covers = [
                Contender(
                    name=COLLAGE if place == 0 else f"{COLLAGE} {place + 1}",
                    kind="collage",
                    cover=data.cover_of(placement),
                    order=place,
                )
                for place, placement in enumerate(placements)
            ]
            calls = call_graph(inputs.open_model.model.graph)
            others = [
                _with_eligibility(data, contender)
                for contender in baselines(calls, inputs.menu, data.settings, len(covers))
            ]
            report.detail = (
                f"{counted(len(covers), 'placement')}, {counted(len(others), 'baseline')}"
            )
        return ContenderList(contenders=(*covers, *others))


def _with_eligibility(data: ProblemData, contender: Contender) -> Contender:
    """A baseline with whether it may win: it breaks no pin and no deployment constraint."""
    why = export_refusal(contender.cover, runtime_limits(data.settings, data.constants))
    broken = any(breaks_pin(contender.cover, pin) for pin in data.pins)
    return replace(contender, eligible=why is None and not broken, barred=why)


@dataclass(frozen=True, kw_only=True)
class ConfirmInputs:
    """What is timed, on which inputs."""

    open_model: OpenModel
    data: ProblemData
    contenders: Sequence[Contender]
    placements: tuple[Placement, ...]
    sample: Sample
    further_samples: tuple[Sample, ...]
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class ConfirmResult:
    """The confirmation's measurements and what it chose."""

    confirmation: Confirmation
    chosen: Placement
    """The winner's placement, with its end-to-end times."""


class Confirm:
    """Builds all contenders and times them in turn, on the run's inputs."""

    name = "confirm"
    inputs = ConfirmInputs

    def run(self, inputs: ConfirmInputs, control: RunControl) -> ConfirmResult:
        """Confirm the fastest.

        Raises:
            CollageError: None of the contenders can be built and run.
        """
        model = inputs.open_model.model
        with control.stage("confirm") as report:
            folder = Path(tempfile.mkdtemp(prefix="confirm-", dir=inputs.open_model.folder))
            runner = TrialRunner(
                TrialModel.of(model),
                [inputs.sample, *inputs.further_samples],
                inputs.tolerance,
                folder,
                cancelled=control.cancelled,
            )
            with runner:
                confirmation = confirm(runner, list(inputs.contenders), on_progress=report.progress)
            report.detail = f"{confirmation.named} wins"
        chosen = chosen_placement(inputs.data, inputs.placements, confirmation)
        return ConfirmResult(confirmation=confirmation, chosen=chosen)
