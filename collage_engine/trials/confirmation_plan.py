"""What a confirmation can do in the time that is left, and how much time to keep for it.

What things take is predicted from the trials of whole models at the begin of the run: building,
loading, and a round of calls.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from collage_engine.control.budget import Clock
from collage_engine.trials.confirmation import (
    Confirmation,
    ConfirmationSettings,
    distinct,
    few_rounds,
    name_of,
    nothing_runs,
)
from collage_engine.trials.contender import Contender, ContenderResult
from collage_engine.trials.placement_process import ONE_LOADED_FROM_BYTES
from collage_engine.trials.runner import NOT_REACHED
from collage_engine.trials.whole_models import WholeModels

UNKNOWN_BUILD_S = 8.0
"""Seconds for a build where none was seen; chosen, from models of a hundred operators."""
UNKNOWN_LOAD_S = 3.0
"""Seconds for loading and checking where none was seen; chosen: TVM's runtime takes two of them."""
MIXED_BUILD_FACTOR = 1.3
"""Building a mixed placement takes so many times as long as the longest build of a whole model;
chosen."""
COVERS_EXPECTED = 2
"""Placements of a search for which time is kept, each of which is built; chosen: the second to
fourth cover of a search mostly differ from its best in one or two partitions and by less than 0.1 %
of the estimate, so that time for measuring tells more than time for them. They are confirmed where
there is time all the same."""
SESSIONS_EXPECTED = 3
"""Whole models that are timed in their toolchain's Python session too; chosen: ONNX Runtime at two
levels, and OpenVINO."""
OTHERS_EXPECTED = 3
"""Baselines that were not tried before and have to be built; chosen: FuseOps and two greedy
partitionings."""
EXACT_SHARE = 0.15
"""Share of the time left that is kept, at most, for more rounds than a confirmation has at least;
chosen: they tell one percent, measuring may find several."""
OTHERS_SHARE = 0.35
"""Share of the time left within which time for such baselines is kept as well; chosen: they are
shown, and hardly ever win."""
NEAR_FACTOR = 1.1
"""Whole models whose trials took at most so many times the fastest one's may be the fastest: the
few rounds of a trial distinguish 10 % (``WholeModelSettings.rounds``)."""
SLOWER = 2
"""The rank of a whole model whose trial took clearly longer than the fastest one's."""
UNTRIED = 3
"""The rank of a baseline that was not tried before (``_sort_key``): after all others."""
AT_ONCE = 2
"""Placements that are built, and loaded, at a time (``TrialSettings``)."""
LARGEST_SHARE = 0.5
"""Share of the time left, at most, that is kept for the confirmation, whatever it is predicted to
need; chosen."""
WIDTH_FACTOR = 4.1
"""Half the width of a paired difference's interval over its standard deviation, times the root of
the number of rounds: 4.0 to 4.4 for 16 to 40 normal differences and the looks of a selection
(``tests/unit/test_confirmation_time.py``)."""
SPREAD_FACTOR = 1.68
"""Distance of the 20th from the 80th percentile of a normal distribution, over its standard
deviation."""
USUAL_SCATTER = 0.01
"""Standard deviation of a placement's rounds, as a share, where no trial has shown it; chosen."""
PROFILE_S = 1.0
"""Seconds for the winner's profile and the processes' memory; chosen."""
EXPORT_S = 1.0
"""Seconds for writing an artifact beside its weights; chosen, from small models."""
EXPORTED_BYTES_PER_S = 150e6
"""Bytes of weights that are copied and hashed per second; chosen: 100 MB of ResNet-50 took 0.1 to
0.5 s on a fast disk."""
CALLS_PER_ROUND = 3
"""Calls of a round at least: one to warm up, two timed (``RoundSettings``)."""
ROUND_S = 0.06
"""Seconds of a round of a fast placement, with its rests (``RoundSettings``)."""
LEAST_ROUNDS = 6
"""Rounds of a confirmation at least: three of each set (``WithdrawalSettings``)."""
QUICK_ROUNDS = 6
"""Rounds of each set in a quick confirmation; chosen: the least whose interval attains 95 %."""
QUICK_ROUNDS_S = 6.0
"""Seconds for the rounds of a quick confirmation; chosen."""


@dataclass(frozen=True, kw_only=True)
class ConfirmationPlan:
    """Who is timed, who is left out, and how long.

    Attributes:
        contenders: those that are timed, in their order; none: the trials have to do.
        left_out: those for which there is no time.
        settings: of the confirmation.
        least_s: seconds that the least rounds take, which nothing cuts off.
        predicted: what building, loading and timing takes.
        in_reserve: those of ``left_out`` that may win, the most promising first: they are timed
            where building the others took less than was predicted.
        quick: whether it was asked to be short, so that time that is left stays unused.
    """

    contenders: tuple[Contender, ...]
    left_out: tuple[Contender, ...]
    settings: ConfirmationSettings
    least_s: float
    predicted: Predicted
    in_reserve: tuple[Contender, ...] = ()
    quick: bool = False


@dataclass(frozen=True)
class Predicted:
    """What building, loading and timing takes, as far as trials have shown.

    Attributes:
        known: the trials of whole models.
        reloads: whether each placement is loaded anew for each of its rounds, because memory holds
            one at a time.
    """

    known: WholeModels
    reloads: bool = False

    @property
    def at_once(self) -> int:
        """Return how many placements are loaded at a time."""
        return 1 if self.reloads else AT_ONCE

    @property
    def settings(self) -> ConfirmationSettings:
        """Return how long a confirmation times contenders that there is time enough for."""
        settings = ConfirmationSettings()
        return few_rounds(settings) if self.reloads else settings

    @property
    def reloading_s(self) -> float:
        """Return the seconds for loading the nearest contenders once more."""
        return self.settings.most_reloaded * self.load_s / self.at_once

    def within(self, seconds: float) -> ConfirmationSettings:
        """Return the settings for a confirmation that has so many seconds for its rounds."""
        settings = self.settings
        if seconds < self.reloading_s:
            settings = replace(settings, most_reloaded=0)
        return replace(settings, budget_s=min(settings.budget_s, max(0.0, seconds)))

    @property
    def build_s(self) -> float:
        """Return the seconds for building a placement that was not built yet."""
        seen = [one.build_s for one in self.known.results if one.build_s > 0]
        return max(seen) * MIXED_BUILD_FACTOR if seen else UNKNOWN_BUILD_S

    def builds_s(self, count: int) -> float:
        """Return the seconds for building so many placements.

        The first ``AT_ONCE`` of them take as long as the longest build that was seen, since they
        also start the workers that build; each further one takes as long as the median of the
        builds.
        """
        seen = [one.build_s for one in self.known.results if one.build_s > 0]
        further_s = statistics.median(seen) * MIXED_BUILD_FACTOR if seen else UNKNOWN_BUILD_S
        return self.build_s + further_s * max(0, count - AT_ONCE) / AT_ONCE

    @property
    def load_s(self) -> float:
        """Return the seconds for loading and checking a placement."""
        seen = [one.load_s for one in self.known.results if one.load_s > 0]
        return statistics.median(seen) if seen else UNKNOWN_LOAD_S

    @property
    def scatter(self) -> float:
        """Return the standard deviation of a whole model's rounds, as a share of its time."""
        seen = []
        for one in self.known.timed:
            spread, us = one.spread_us, one.measured_us
            if spread is not None and us:
                seen.append((spread[1] - spread[0]) / SPREAD_FACTOR / us)
        return statistics.median(seen) if seen else USUAL_SCATTER

    def contender_s(self, contender: Contender) -> float:
        """Return the seconds for building and loading one contender, and for its least rounds.

        A contender whose module was built for its trial is not built again; one that is timed in
        its toolchain's Python session is also timed as an artifact.
        """
        module = replace(contender, python_session=False).key
        outcome = self.known.by_key.get(module)
        built = outcome is not None and outcome.folder is not None
        # What is timed in its Python session is timed as an artifact too.
        twice = 2 if contender.python_session else 1
        waiting = ((0.0 if built else self.build_s) + twice * self.load_s) / self.at_once
        return waiting + self.least_rounds_s(contender)

    def least_rounds_s(self, contender: Contender) -> float:
        """Return the seconds of a contender's least rounds.

        They are ``LEAST_ROUNDS``, and twice as many where it is timed in a Python session and as an
        artifact.
        """
        module = replace(contender, python_session=False).key
        outcome = self.known.by_key.get(module)
        twice = 2 if contender.python_session else 1
        timed = outcome if outcome is not None and outcome.measured_us else self.known.best
        return twice * LEAST_ROUNDS * self.round_s(timed)

    def round_s(self, outcome: ContenderResult | None) -> float:
        """Return the seconds of one round of a contender.

        Args:
            outcome: What its trial found; None: nothing is known of it, and only loading and the
                least duration of a round count.
        """
        us = outcome.measured_us if outcome is not None else None
        loading_s = self.load_s if self.reloads else 0.0
        return loading_s + max(ROUND_S, CALLS_PER_ROUND * (us or 0.0) * 1e-6)

    def rounds_wanted(self, settings: ConfirmationSettings) -> tuple[int, int]:
        """Return how many rounds the selection, and the fresh set, need for near contenders.

        After so many rounds the interval of a paired difference is as narrow as a verdict wants it
        (``RankingSettings.precise``), within the least and the most rounds that the settings allow.
        """
        of_a_pair = math.sqrt(2) * self.scatter
        wanted = math.ceil((WIDTH_FACTOR * of_a_pair / settings.ranking.precise) ** 2)
        selection = min(max(wanted, settings.selection_rounds), settings.most_rounds)
        return selection, max(selection, settings.fresh_rounds)

    def further_rounds_s(
        self, contenders: Sequence[Contender], settings: ConfirmationSettings
    ) -> float:
        """Return the seconds of all rounds beyond the least ones, of whole models and of covers.

        Args:
            contenders: All contenders; those of the kind ``collage`` are covers.
            settings: The settings of the confirmation.
        """
        covers = sum(one.kind == "collage" for one in contenders)
        least_s = LEAST_ROUNDS * sum(map(self.round_s, self.known.timed))
        least_s += LEAST_ROUNDS * covers * self.round_s(self.known.best)
        return max(0.0, self.rounds_s(covers, settings) - least_s)

    def rounds_s(
        self, covers: int, settings: ConfirmationSettings, wanted: tuple[int, int] | None = None
    ) -> float:
        """Return the seconds of the rounds of all whole models, and of so many covers.

        Contenders that are clearly slower withdraw after some rounds of each set. What the
        settings' budget does not hold is cut off, except for the least rounds.

        Args:
            covers: The number of covers, which are taken to be near the fastest whole model.
            settings: The settings of the confirmation.
            wanted: How many rounds near contenders have in the selection and in the fresh set;
                None: as many as the scatter of the trials asks for.
        """
        best, limits = self.known.best, settings.withdrawal
        of_each = sum(wanted or self.rounds_wanted(settings))
        near_s = self.round_s(best) * of_each * covers
        least_s = self.round_s(best) * LEAST_ROUNDS * covers
        for one in self.known.timed:
            factor = (one.measured_us or 0.0) / ((best and best.measured_us) or math.inf)
            rounds = of_each
            if factor >= limits.slow_factor:
                rounds = 2 * limits.least_rounds
            elif factor >= limits.near_factor:
                rounds = 4 * limits.least_rounds
            near_s += self.round_s(one) * rounds
            least_s += self.round_s(one) * LEAST_ROUNDS
        return max(least_s, min(near_s, settings.budget_s))


@dataclass
class TimeLeft:
    """Implements ``confirmation.Reserve`` by the time that is left when contenders are built.

    Attributes:
        plan: what was planned before anything was built.
        ends_at: when the confirmation is to be over, on the clock.
        clock: returns the time now, in seconds.
        least_s: seconds that the least rounds of all who take part take.
    """

    plan: ConfirmationPlan
    ends_at: float
    clock: Clock = time.monotonic
    least_s: float = field(init=False)
    _taken: list[Contender] = field(init=False, repr=False)
    _waiting: list[Contender] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.least_s = self.plan.least_s
        self._taken = list(self.plan.contenders)
        self._waiting = list(self.plan.in_reserve)

    @property
    def is_over(self) -> bool:
        """Return whether nothing but the least rounds can be run any more."""
        return self.clock() > self.ends_at - self.least_s

    def further(self) -> list[Contender]:
        """Return the next contenders that there is time for after all, ``AT_ONCE`` at most."""
        predicted = self.plan.predicted
        left_s = self._left_s() - predicted.reloading_s
        left_s -= predicted.further_rounds_s(self._taken, predicted.settings)
        further: list[Contender] = []
        for contender in list(self._waiting):
            needs = predicted.contender_s(contender)
            if needs <= left_s and len(further) < AT_ONCE:
                further.append(contender)
                self._waiting.remove(contender)
                left_s -= needs
        self._taken += further
        self.least_s += sum(map(predicted.least_rounds_s, further))
        return further

    def settings(self) -> ConfirmationSettings:
        """Return the plan's settings, with all rounds that there is time for now."""
        if self.plan.quick:
            return self.plan.settings
        return self.plan.predicted.within(self._left_s())

    def _left_s(self) -> float:
        """Return the seconds for rounds beyond the least ones, when all are built."""
        predicted = self.plan.predicted
        loads_s = len(distinct(self._taken)) * predicted.load_s / predicted.at_once
        return self.ends_at - self.clock() - loads_s - self.least_s


def kept_back(
    known: WholeModels, left_s: float, weights_bytes: int, worth_s: float = 0.0
) -> tuple[float, float]:
    """Return the seconds to keep for the confirmation, and those to keep for writing the artifact.

    A confirmation needs time for building what a search will hand it, for loading all contenders,
    and for as many rounds as tell near contenders apart, by what the trials show of calls and their
    scatter.

    Args:
        known: The trials of whole models.
        left_s: Seconds that the run has left.
        weights_bytes: Bytes of the model's weights.
        worth_s: Seconds below which measuring does not begin; they are left to it where the rest is
            enough to compare one cover with the fastest whole model.
    """
    predicted = Predicted(known, reloads=weights_bytes >= ONE_LOADED_FROM_BYTES)
    settings = predicted.settings
    exporting_s = EXPORT_S + weights_bytes / EXPORTED_BYTES_PER_S
    loads = len(known.timed) + COVERS_EXPECTED + SESSIONS_EXPECTED + settings.most_reloaded
    few = (settings.selection_rounds, settings.fresh_rounds)
    few_s = predicted.rounds_s(COVERS_EXPECTED, settings, few)
    needed_s = (
        predicted.builds_s(COVERS_EXPECTED)
        + loads * predicted.load_s / predicted.at_once
        + few_s
        + PROFILE_S
    )
    rest = max(0.0, left_s - exporting_s)
    exact_s = predicted.rounds_s(COVERS_EXPECTED, settings) - few_s
    needed_s += min(exact_s, EXACT_SHARE * rest)
    others_s = OTHERS_EXPECTED * (
        (predicted.build_s + predicted.load_s) / predicted.at_once
        + LEAST_ROUNDS * predicted.round_s(known.best)
    )
    if needed_s + others_s <= OTHERS_SHARE * rest:
        needed_s += others_s
    least_s = (
        predicted.build_s
        + 2 * (predicted.load_s + LEAST_ROUNDS * predicted.round_s(known.best))
        + PROFILE_S
    )
    most_s = min(LARGEST_SHARE * rest, max(least_s, rest - worth_s))
    return min(needed_s, most_s), exporting_s


def plan_confirmation(
    contenders: Sequence[Contender],
    known: WholeModels,
    seconds: float,
    *,
    weights_bytes: int = 0,
    quick: bool = False,
    earlier_us: Mapping[str, float] | None = None,
) -> ConfirmationPlan:
    """Choose which contenders are timed in the time that is left, the most promising first.

    Args:
        contenders: The placements, the best first, and all baselines.
        known: The trials of whole models; the fastest of them is always worth its time, since its
            module is built already.
        seconds: How long the confirmation may take.
        weights_bytes: Bytes of the model's weights.
        quick: Whether to time the placements and the best baseline only, in few rounds.
        earlier_us: Microseconds of baselines in the run before, by name, which count where there
            are no trials.

    Returns:
        The contenders that are timed, those for which there is no time, and for how long.
    """
    predicted = Predicted(known, reloads=weights_bytes >= ONE_LOADED_FROM_BYTES)
    possible = [one for one in contenders if one.reason is None]
    ordered = sorted(possible, key=lambda one: _sort_key(one, known, earlier_us or {}))
    if quick:
        ordered = _quick_contenders(
            ordered, {id(one): _sort_key(one, known, earlier_us or {})[2] for one in ordered}
        )
    settings = predicted.settings
    # What was not tried is left out before those that may win lack processes and rounds.
    exact_s = 0.0
    if not quick:
        exact_s = predicted.reloading_s + predicted.further_rounds_s(ordered, settings)
    taken: list[Contender] = []
    spent = PROFILE_S
    for contender in ordered:
        needs = predicted.contender_s(contender)
        is_untried = _sort_key(contender, known, earlier_us or {})[1] == UNTRIED
        is_first_answer = known.best is None and not taken  # then it is tried, whatever it takes
        if is_first_answer or spent + needs + (exact_s if is_untried else 0.0) <= seconds:
            taken.append(contender)
            spent += needs
    chosen = {id(one) for one in taken}
    settings = predicted.within(seconds - spent)
    if quick:
        settings = replace(
            settings,
            selection_rounds=min(QUICK_ROUNDS, settings.selection_rounds),
            fresh_rounds=min(QUICK_ROUNDS, settings.fresh_rounds),
            most_rounds=min(QUICK_ROUNDS, settings.most_rounds),
            most_reloaded=0,
            budget_s=min(settings.budget_s, QUICK_ROUNDS_S),
        )
    in_reserve = [one for one in ordered if id(one) not in chosen and not quick]
    return ConfirmationPlan(
        contenders=tuple(one for one in contenders if id(one) in chosen),
        left_out=tuple(one for one in possible if id(one) not in chosen),
        settings=settings,
        least_s=PROFILE_S + sum(map(predicted.least_rounds_s, taken)),
        predicted=predicted,
        quick=quick,
        in_reserve=tuple(
            one
            for one in in_reserve
            if one.eligible and _sort_key(one, known, earlier_us or {})[1] != SLOWER
        ),
    )


def confirmation_of_trials(known: WholeModels) -> Confirmation:
    """Return what the trials of whole models say, where there is no time for a confirmation.

    The fastest wins; those that its few rounds cannot tell from it are tied with it.

    Raises:
        ToolchainError: No whole model ran with right numbers.
    """
    best = known.best
    if best is None:
        raise nothing_runs((one.contender.name, one.reason) for one in known.results)
    differences = known.differences()
    return Confirmation(
        results=(best,),
        winner=best,
        named=best.contender.name,
        tied=tuple(name for name, apart in differences.items() if apart.tied),
        differences=differences,
        in_place_us=(),
        residual=(),
    )


def with_left_out(
    confirmation: Confirmation,
    contenders: Sequence[Contender],
    known: WholeModels,
    reason: str = NOT_REACHED,
) -> Confirmation:
    """Return a confirmation with a result for every contender.

    Whole models that took no part keep the times of their trials; the other contenders say that
    they were not timed.

    Args:
        confirmation: What was timed.
        contenders: All contenders that there are.
        known: The trials of whole models.
        reason: Why the others were left out.
    """
    confirmed = {id(one.contender): one for one in confirmation.results}
    by_key = {one.contender.key: one for one in confirmation.results if one.reason != NOT_REACHED}

    def outcome_of(contender: Contender) -> ContenderResult:
        found = confirmed.get(id(contender))
        if found is not None and found.reason != NOT_REACHED:
            return found
        if contender.reason is not None:
            return ContenderResult(contender=contender, reason=contender.reason)
        module = replace(contender, python_session=False).key
        tried = by_key.get(module) or known.by_key.get(module)
        if tried is not None:
            return replace(tried, contender=contender)
        return ContenderResult(contender=contender, reason=reason)

    results = tuple(map(outcome_of, contenders))
    named = name_of(confirmation.winner.contender, contenders)
    return replace(confirmation, results=results, named=named)


def _sort_key(
    contender: Contender, known: WholeModels, earlier_us: Mapping[str, float]
) -> tuple[bool, int, float, int]:
    """Return a key by which contenders are sorted, the most promising first.

    The best whole model and the best placement come first, then the whole models that may be as
    fast, then the other placements, then baselines by the times of their trials, and last those
    that were not tried. Contenders that may not win come after all that may.

    Returns:
        Whether it may not win, its rank, its microseconds (infinity where none are known), and its
        place in the user's order.
    """
    outcome = known.by_key.get(replace(contender, python_session=False).key)
    us = outcome.measured_us if outcome is not None and outcome.reason is None else None
    us = us or earlier_us.get(contender.name) or math.inf
    if outcome is not None and outcome is known.best:
        rank = 0
    elif contender.kind == "collage":
        rank = 0 if contender.order == 0 else 1
    elif contender.kind == "user" or (
        known.best is not None and us <= NEAR_FACTOR * (known.best.measured_us or 0.0)
    ):
        rank = 1
    else:
        rank = SLOWER if math.isfinite(us) else UNTRIED
    return (not contender.eligible, rank, us, contender.order)


def _quick_contenders(ordered: Sequence[Contender], us: Mapping[int, float]) -> list[Contender]:
    """Return the contenders of a quick confirmation: the placements and the fastest baseline.

    The baseline may be one that breaks a pin: what a pin costs is seen against what there would be
    without it. Where there is no placement it is the most promising baseline.

    Args:
        ordered: The contenders, the most promising first.
        us: What each took before in microseconds, by the ``id()`` of the contender.
    """
    placements = [one for one in ordered if one.kind == "collage"]
    baselines = [one for one in ordered if one.kind != "collage"]
    if placements:  # without one it is the first that may be exported
        baselines.sort(key=lambda one: us[id(one)])
    few = {id(one) for one in [*placements, *baselines[:1]]}
    return [one for one in ordered if id(one) in few]
