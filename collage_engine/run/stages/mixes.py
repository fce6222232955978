"""The step that tries mixes of toolchains, before candidates are measured one by one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from collage_engine.candidates.menu import Menu
from collage_engine.control.budget import RunBudget
from collage_engine.control.progress import StageReport
from collage_engine.control.run_control import RunControl
from collage_engine.partition.call_graph import call_graph
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.candidate import Candidate
from collage_engine.records.counted import counted
from collage_engine.run.contenders import with_eligibility
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.stages.measure import MEASURING_SHARE
from collage_engine.run.task import RunTask
from collage_engine.run.trials_of_run import profiled_covers
from collage_engine.store.keys import KeyMaker
from collage_engine.trials.baselines import COLLAGE
from collage_engine.trials.calibration import learning_tolerance
from collage_engine.trials.contender import Contender, ProfiledCover, Trial
from collage_engine.trials.mixes import (
    Cover,
    GroupTimes,
    Mix,
    MixSettings,
    OperatorGroup,
    groups_of,
    profile_groups,
    suggested_mixes,
)
from collage_engine.trials.placement_process import ONE_LOADED_FROM_BYTES
from collage_engine.trials.race import Race
from collage_engine.wording.amounts import time_text

LEAST_COVERS = 3
"""Covers that there must be time for, or no mix is tried: two toolchains profiled, and one mix."""
FEW_CANDIDATES = 300
"""Distinct unmeasured candidates up to which no mix is tried; chosen: all of them are measured
within a minute, and a search of all covers then tells more."""


@dataclass(frozen=True, kw_only=True)
class MixResult:
    """What is known from the mixes."""

    data: ProblemData
    """With the partitions of the fastest mix among the candidates."""
    profiled_covers: tuple[ProfiledCover, ...]
    """What partitions took inside the model so far: estimates rest on it."""
    budget: RunBudget
    """With the time kept back that the end of the race is seen to need now."""


def try_mixes(
    task: RunTask,
    menu: Menu,
    data: ProblemData,
    tolerance: float,
    race: Race,
    budget: RunBudget,
    control: RunControl,
) -> MixResult:
    """Profile operator groups inside the model, and have mixes that follow enter the race.

    A quick confirmation tries none. Neither does a run on a device, where the clock of a profile
    sees calls being issued, nor one where there is nothing to mix or no time for it.
    """
    settings = data.settings
    one_at_a_time = task.open_model.model.record.weights_bytes >= ONE_LOADED_FROM_BYTES
    on_processor = menu.target.kind == "cpu"
    wanted = not task.is_quick and settings.objective == "latency"
    if wanted and on_processor and not one_at_a_time and race.leader is not None:
        unmeasured = {c.key for c in data.candidates if not data.costs.known(c.id)}
        instances = {c.instance.id for c in data.candidates}
        if len(instances) > 1 and len(unmeasured) > FEW_CANDIDATES:
            seconds = MEASURING_SHARE * budget.to_improve_s
            if seconds < LEAST_COVERS * race.seconds_to_enter:
                control.cut("mixes")
            else:
                with control.stage("mixes") as report:
                    mixing = Mixing(task, menu, data, tolerance, race, MixSettings())
                    data = mixing.run(seconds, report)
                    race.end_builders()
                budget = budget.keeping_back(race.seconds_to_finish, budget.exporting_s)
    return MixResult(data=data, profiled_covers=profiled_covers(race, data), budget=budget)


class Mixing:
    """The mixing of one run.

    Attributes:
        taken: by instance id, its candidates for groups.
    """

    def __init__(
        self,
        task: RunTask,
        menu: Menu,
        data: ProblemData,
        tolerance: float,
        race: Race,
        settings: MixSettings,
    ) -> None:
        self.model = task.open_model.model
        self.menu = menu
        self.data = data
        self.tolerance = tolerance
        self.race = race
        self.settings = settings
        self.calls = call_graph(self.model.graph)
        self.groups = groups_of(self.calls)
        self.alone_us = self._alone_us()
        self.taken = self._taken()

    def _alone_us(self) -> dict[str, float]:
        """Return what each toolchain takes alone on the whole model, in µs by instance id."""
        return {
            one.contender.cover[0].instance.id: one.measured_us
            for one in self.race.results()
            if len(one.contender.cover) == 1 and one.contender.eligible and one.measured_us
        }

    def _taken(self) -> dict[str, dict[OperatorGroup, Candidate]]:
        """Return the candidates for groups by instance id, in the order of profiling.

        Instances that TVM compiles, which take every operator, come first, then those with the
        fewest groups, which are soonest ready.
        """
        groups = set(self.groups)
        taken: dict[str, dict[OperatorGroup, Candidate]] = {}
        hosts = {source.instance.id for source in self.menu.sources if source.host}
        for candidate in self.data.candidates:
            group = tuple(candidate.nodes)
            plain = not (candidate.takes or candidate.gives or candidate.instance.config)
            if plain and group in groups and candidate.instance.id not in hosts:
                taken.setdefault(candidate.instance.id, {})[group] = candidate
        compiled = {s.instance.id for s in self.menu.sources if s.lowers_to_tir}
        # What takes every operator comes first, then what is soonest ready: the fewer groups, the
        # fewer there are to load.
        order = sorted(taken, key=lambda name: (name not in compiled, len(taken[name])))
        return {name: taken[name] for name in order}

    def run(self, seconds: float, report: StageReport) -> ProblemData:
        """Profile the groups, then have the mixes that promise a gain enter the race.

        Args:
            seconds: How long that may take.
            report: Takes progress, and the outcome in a phrase.

        Returns:
            The data with the partitions of the fastest mix among the candidates.
        """
        began = time.monotonic()
        times = self.profiled(began + MEASURING_SHARE * seconds, report)
        mixes = [self._contender(mix.cover) for mix in self.mixes(times)]
        eligible = [one for one in mixes if one.eligible]
        self.race.enter(eligible, ends_at=began + seconds, on_progress=report.progress)
        modules = {one.module for one in eligible}
        ran = [
            one
            for one in self.race.results()
            if one.contender.module in modules and one.measured_us is not None
        ]
        fastest = min(ran, key=lambda one: one.measured_us or 0.0, default=None)
        groups = counted(len(self.groups), "group")
        if not eligible:
            report.detail = f"{groups} of operators, of which no mix of toolchains promises a gain"
        if fastest is None or fastest.measured_us is None:
            report.detail = (
                report.detail or f"{groups} of operators; no mix of toolchains could be timed"
            )
            return self.data
        alone_us = min(self._alone_us().values())  # of the same rounds
        report.detail = (
            f"{groups} of operators; the fastest mix has "
            f"{counted(len(fastest.contender.cover), 'partition')} and takes "
            f"{time_text(fastest.measured_us)}, the fastest toolchain alone {time_text(alone_us)}"
        )
        return self._with_candidates(fastest.contender.cover)

    def profiled(self, ends_at: float, report: StageReport) -> GroupTimes:
        """Find out what groups take inside the model, one toolchain after the other.

        Args:
            ends_at: When no further cover is to be built, on the monotonic clock.
            report: Takes progress.

        Returns:
            What the groups took, as far as covers ran.
        """
        names = list(self.taken)

        def is_over() -> bool:
            return time.monotonic() >= ends_at or self.race.time_left <= 0.0

        def run(name: str, cover: Cover) -> Trial:
            now = f"what each group of operators takes on {name}, inside the model"
            report.progress(names.index(name), len(names), now)
            loose = learning_tolerance(cover, self.tolerance)
            return self.race.try_cover(
                self._contender(cover, teaches=loose is not None), ends_at=ends_at, tolerance=loose
            )

        return profile_groups(self.groups, self.taken, self.settings, run, is_over)

    def _contender(self, cover: Sequence[Candidate], *, teaches: bool = False) -> Contender:
        """Return a contender; one that only teaches cannot win."""
        contender = Contender(name=COLLAGE, kind="collage", cover=tuple(cover), eligible=False)
        return contender if teaches else with_eligibility(self.data, contender)

    def mixes(self, times: GroupTimes) -> list[Mix]:
        """Return the mixes that these times suggest, the most promising first."""
        return suggested_mixes(times, self.alone_us, self.calls, self._candidate, self.settings)

    def _candidate(self, instance: str, operators: OperatorGroup) -> Candidate:
        """Return the candidate of some operators on an instance: the menu's, or a new one."""
        known = self.taken[instance].get(operators)
        if known is not None:
            return known
        graph = self.model.graph
        return make_candidate(graph, self.menu.instances[instance], operators, rule="mix")

    def _with_candidates(self, cover: Iterable[Candidate]) -> ProblemData:
        """Return the data with the partitions of a mix among the candidates."""
        data, menu = self.data, self.menu
        model = self.model
        makers = KeyMaker(model.graph, model.constant)
        new = [
            msgspec.structs.replace(
                candidate, key=menu.keys.key(makers.form_of(candidate), candidate.instance)
            )
            for candidate in cover
            if candidate.id not in data.by_id
        ]
        return data.with_candidates([*data.candidates, *new], data.costs)
