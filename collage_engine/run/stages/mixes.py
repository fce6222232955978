"""The stage that tries mixes of toolchains, before candidates are measured one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import msgspec

from collage_engine.candidates.menu import Menu
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.budget import Budget, RunBudget
from collage_engine.control.progress import StageReport
from collage_engine.control.run_control import RunControl
from collage_engine.partition.call_graph import call_graph
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.candidate import Candidate
from collage_engine.records.counted import counted
from collage_engine.records.errors import Cancelled
from collage_engine.run.contenders import with_eligibility
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.provisional import announce
from collage_engine.run.trials_of_run import trial_runner
from collage_engine.store.keys import KeyMaker
from collage_engine.trials.baselines import COLLAGE
from collage_engine.trials.confirmation_plan import Predicted
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.mixes import (
    GroupTimes,
    Mix,
    MixSettings,
    OperatorGroup,
    groups_of,
    profile_groups,
    suggested_mixes,
)
from collage_engine.trials.objective import trial_settings
from collage_engine.trials.placement_process import ONE_LOADED_FROM_BYTES
from collage_engine.trials.proposals import ProfiledCover, Proposal, Trial, run_proposals
from collage_engine.trials.runner import NOT_REACHED, TrialRunner
from collage_engine.trials.whole_models import (
    OnProgress,
    TrialTime,
    WholeModels,
    time_whole_models,
)
from collage_engine.wording import stages as say

MIXES_SHARE = 0.6
"""Share of the time for improving the answer that mixes may take; chosen: where there is little,
mixes find more than the few candidates that can be measured, and where there is much they end long
before."""
LEAST_COVERS = 3
"""Covers that there must be time for, or no mix is tried: two toolchains profiled, and one mix."""
FEW_CANDIDATES = 300
"""Distinct unmeasured candidates up to which no mix is tried; chosen: all of them are measured
within a minute, and a search of all covers then tells more."""
PROFILING_SHARE = 0.65
"""Share of the stage's time for profiles; chosen: the rest is for mixes."""


@dataclass(frozen=True, kw_only=True)
class MixInputs:
    """The toolchains, what they take alone, and the run's inputs."""

    open_model: OpenModel
    menu: Menu
    data: ProblemData
    sample: Sample
    further_samples: tuple[Sample, ...]
    tolerance: float
    whole_models: WholeModels
    budget: RunBudget
    run_id: str
    started_at: str


@dataclass(frozen=True, kw_only=True)
class MixResult:
    """The fastest mix beside the whole models, where one ran."""

    data: ProblemData
    """With its partitions among the candidates."""
    whole_models: WholeModels
    profiled_covers: tuple[ProfiledCover, ...] = ()
    """The covers in which groups were profiled: calibration learns from them, too."""


class TryMixes:
    """Profiles operator groups inside the model, and times the mixes that follow from that.

    A quick confirmation tries none. Neither does a run on a device, where the clock of a profile
    sees calls being issued.
    """

    name = "mixes"
    inputs = MixInputs

    def run(self, inputs: MixInputs, control: RunControl) -> MixResult:
        """Try mixes, unless there is nothing to mix or no time for it."""
        data, known = inputs.data, inputs.whole_models
        settings = data.settings
        unchanged = MixResult(data=data, whole_models=known)
        wanted = settings.parts.mixes and settings.confirmation != "quick"
        one_at_a_time = inputs.open_model.model.record.weights_bytes >= ONE_LOADED_FROM_BYTES
        on_processor = inputs.menu.target.kind == "cpu"
        if not wanted or one_at_a_time or not on_processor or settings.objective != "latency":
            return unchanged
        unmeasured = {c.key for c in data.candidates if not data.costs.known(c.id)}
        instances = {c.instance.id for c in data.candidates}
        if known.best is None or len(instances) < 2 or len(unmeasured) <= FEW_CANDIDATES:
            return unchanged
        seconds = MIXES_SHARE * inputs.budget.to_improve_s
        predicted = Predicted(known)
        if seconds < LEAST_COVERS * (predicted.build_s + predicted.load_s):
            control.cut("mixes")
            return unchanged
        work = Mixing(inputs, control, MixSettings())
        with control.stage("mixes") as report:
            return work.run(seconds, report)


def _us_of(known: WholeModels) -> float:
    """Return what the fastest that may be exported takes, in µs."""
    best_us = known.best.measured_us if known.best is not None else None
    return math.inf if best_us is None else best_us


class Mixing:
    """The mixing of one run.

    Attributes:
        taken: by instance id, its candidates for groups.
        profiled_covers: what ran while groups were profiled.
    """

    def __init__(self, inputs: MixInputs, control: RunControl, settings: MixSettings) -> None:
        self.inputs = inputs
        self.control = control
        self.settings = settings
        self.calls = call_graph(inputs.open_model.model.graph)
        self.groups = groups_of(self.calls)
        self.alone_us = {
            one.contender.cover[0].instance.id: one.measured_us
            for one in inputs.whole_models.timed
            if len(one.contender.cover) == 1 and one.contender.eligible and one.measured_us
        }
        self.taken = self._taken()
        self.profiled_covers: list[ProfiledCover] = []

    def _taken(self) -> dict[str, dict[OperatorGroup, Candidate]]:
        """Return the candidates for groups by instance id, in the order of profiling.

        Instances that TVM compiles, which take every operator, come first, then those with the
        fewest groups, which are soonest ready.
        """
        groups = set(self.groups)
        taken: dict[str, dict[OperatorGroup, Candidate]] = {}
        hosts = {source.instance.id for source in self.inputs.menu.sources if source.host}
        for candidate in self.inputs.data.candidates:
            group = tuple(candidate.nodes)
            plain = not (candidate.takes or candidate.gives or candidate.instance.config)
            if plain and group in groups and candidate.instance.id not in hosts:
                taken.setdefault(candidate.instance.id, {})[group] = candidate
        compiled = {s.instance.id for s in self.inputs.menu.sources if s.lowers_to_tir}
        # What takes every operator comes first, then what is soonest ready: the fewer groups, the
        # fewer there are to load.
        order = sorted(taken, key=lambda name: (name not in compiled, len(taken[name])))
        return {name: taken[name] for name in order}

    def run(self, seconds: float, report: StageReport) -> MixResult:
        """Profile the groups, then time the mixes that promise a gain.

        Args:
            seconds: How long that may take.
            report: Takes progress, and the outcome in a phrase.
        """
        inputs, control = self.inputs, self.control
        budget = Budget(seconds)
        found = MixResult(data=inputs.data, whole_models=inputs.whole_models)
        with trial_runner(
            TryMixes.name,
            inputs.open_model,
            [inputs.sample, *inputs.further_samples],
            inputs.tolerance,
            control.within(seconds),
            trial_settings(inputs.data.settings),
            modules=inputs.whole_models.modules,
            keep_modules=True,
        ) as runner:
            times = self.profiled(
                runner,
                is_over=lambda: budget.left < (1 - PROFILING_SHARE) * budget.seconds,
                on_progress=report.progress,
            )
            covers = [
                Contender(name=COLLAGE, kind="collage", cover=mix.cover)
                for mix in self.mixes(times)
            ]
            judged = [with_eligibility(inputs.data, contender) for contender in covers]
            contenders = [contender for contender in judged if contender.eligible]
            if contenders:
                found = self._timed(runner, contenders, budget, report)
        report.detail = self._detail(times, found.whole_models, len(contenders))
        return replace(found, profiled_covers=tuple(self.profiled_covers))

    def profiled(
        self,
        runner: TrialRunner,
        is_over: Callable[[], bool],
        on_progress: OnProgress = lambda done, total, now: None,
    ) -> GroupTimes:
        """Find out what groups take inside the model, one toolchain after the other.

        Args:
            runner: Builds and runs the covers.
            is_over: Tells whether no further cover is to be built.
            on_progress: Is called before each cover.

        Returns:
            What the groups took, as far as covers ran.
        """
        names = list(self.taken)

        def run(favouring: tuple[str, Proposal]) -> Trial:
            name, proposal = favouring
            now = say.PROFILING_GROUPS_ON.format(toolchain=name)
            on_progress(names.index(name), len(names), now)
            try:
                trial = runner.run(proposal)
            except Cancelled:
                self.control.cut("mixes")
                return Trial(failures=(NOT_REACHED,))
            if not trial.failures:
                self.profiled_covers.append(ProfiledCover(proposal.cover, trial))
            return trial

        tolerance = self.inputs.tolerance
        return run_proposals(
            profile_groups(self.groups, self.taken, tolerance, self.settings, is_over), run
        )

    def mixes(self, times: GroupTimes) -> list[Mix]:
        """Return the mixes that these times suggest, the most promising first."""
        return suggested_mixes(times, self.alone_us, self.calls, self._candidate, self.settings)

    def _candidate(self, instance: str, operators: OperatorGroup) -> Candidate:
        """Return the candidate of some operators on an instance: the menu's, or a new one."""
        known = self.taken[instance].get(operators)
        if known is not None:
            return known
        graph = self.inputs.open_model.model.graph
        return make_candidate(graph, self.inputs.menu.instances[instance], operators, rule="mix")

    def _timed(
        self, runner: TrialRunner, mixes: list[Contender], budget: Budget, report: StageReport
    ) -> MixResult:
        """Time mixes in the same rounds as the fastest whole model.

        Args:
            runner: Builds and runs them.
            mixes: The mixes, the most promising first.
            budget: The time for it.
            report: Takes progress.

        Returns:
            What is known then; the fastest mix is among the whole models where one ran.
        """
        inputs, before = self.inputs, self.inputs.whole_models
        best = before.best
        assert best is not None
        data = inputs.data
        later = WholeModels()
        announced = before

        def on_answer(so_far: WholeModels) -> None:
            nonlocal later, announced
            later = so_far
            known = before.joined_by(later)
            if known.best is announced.best or _us_of(known) >= _us_of(announced):
                return  # further rounds of both may have changed what it is said to take
            announced = known
            announce(inputs, known, self.control)

        given = TrialTime(
            left_s=lambda: 0.0 if self.control.keep.is_set() else budget.left,
            on_answer=on_answer,
            on_progress=report.progress,
        )
        try:
            later = time_whole_models(runner, [best.contender, *mixes], given)
        except Cancelled:
            self.control.cut("mixes")  # what was the fastest so far stays known
        known = before.joined_by(later)
        if known is before:
            return MixResult(data=data, whole_models=before)
        return MixResult(
            data=self._with_candidates(known.results[-1].contender.cover), whole_models=known
        )

    def _with_candidates(self, cover: Iterable[Candidate]) -> ProblemData:
        """Return the data with the partitions of a mix among the candidates."""
        data, menu = self.inputs.data, self.inputs.menu
        model = self.inputs.open_model.model
        makers = KeyMaker(model.graph, model.constant)
        new = [
            msgspec.structs.replace(
                candidate, key=menu.keys.key(makers.form_of(candidate), candidate.instance)
            )
            for candidate in cover
            if candidate.id not in data.by_id
        ]
        return data.with_candidates([*data.candidates, *new], data.costs)

    def _detail(self, times: GroupTimes, known: WholeModels, tried: int) -> str:
        """Return the outcome of the stage in a phrase."""
        groups = counted(len(self.groups), "group")
        if not tried:
            return say.NO_MIX_PROMISES.format(groups=groups)
        mix = known.results[-1]
        if known is self.inputs.whole_models or mix.measured_us is None:
            return say.NO_MIX_RAN.format(groups=groups)
        share = mix.measured_us / min(self.alone_us.values()) - 1
        return say.FASTEST_MIX.format(
            groups=groups,
            partitions=counted(len(mix.contender.cover), "partition"),
            ms=f"{mix.measured_us / 1000:.3g}",
            share=f"{100 * share:+.1f}",
        )
