"""The stage that finds out which products may be rounded, before anything else is measured.

Where reduced precision is admitted, the whole model in it is fast and mostly breaks the tolerance,
and in float32 it is slow. Between them lies the placement that rounds as many products as the
tolerance allows. Here they are chosen once:

1. Whole models in reduced precision that break the tolerance are timed. Where none of them is
   faster than the best placement within it, there is nothing to choose.
2. What rounding does to the outputs is emulated (``lowering/rounding_emulation.py``): of each
   product by itself, and of sets of products (``trials/product_choice.py``), on all samples.
3. The whole model with the chosen set is built on each toolchain that can leave single products in
   float32 and whose reduced precision is near the fastest of them. It enters the race at once.
4. Its measured error corrects the choice where it breaks the tolerance: it was off by a factor,
   which the next bound takes into account.

From then on candidates in reduced precision take part in covers only where all products that they
round are in the set, so that the search needs no bound on errors.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from collage_engine.candidates.menu import Menu
from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.lowering.rounding_emulation import MANTISSA_BITS, RoundingEmulation
from collage_engine.model.importer import ImportedModel
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.accuracy import RoundedProduct, Rounding, RoundingTrial
from collage_engine.records.candidate import Candidate
from collage_engine.records.errors import Cancelled, ToolchainError
from collage_engine.records.numbering import NodeIndex, OperatorNumber
from collage_engine.records.precision import FULL, PRODUCTS, careful, is_reduced
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.work import work_of_operators
from collage_engine.run.contenders import with_eligibility
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.stages.samples import RunSamples
from collage_engine.run.stages.whole_models import keep_costs, with_trial_costs
from collage_engine.run.task import RunTask
from collage_engine.store.keys import KeyMaker
from collage_engine.toolchains.capabilities import rounds
from collage_engine.toolchains.registry import about, get
from collage_engine.trials.baselines import COLLAGE
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.product_choice import ProductChoice, Products, choose_products
from collage_engine.trials.race import Race
from collage_engine.wording import stages as say

SHARE = 0.25
"""Share of the run's budget that the stage may take: on seven models emulation took 1 to 5 s of a
minute, and one to three builds the rest."""
BOUND = 0.9
"""Share of the tolerance that a set's emulated error may take: built for real on TVM, the error was
at most 1.22 times the emulated one on five models, and mostly within 14 % of it. On oneDNN it was
up to 1.6 times; a second build takes a third of a second there."""
CORRECTED_BOUND = 0.95
"""The same where the factor between the real error and the emulated one is known."""
MOST_BUILDS = 3
"""Builds on one toolchain at most: the second knows that factor, the third what is left of it."""
NEAR = 1.3
"""Times the least time of a whole model in reduced precision up to which the choice is built on a
toolchain: with some products in float32, five models took up to 1.3 times the time of all rounded.
"""
SINGLE_ERRORS_SHARE = 0.5
"""Share of the stage's time for the errors of single products, which took 1 to 5 s of a minute on
seven models; without them the products are chosen by depth."""
LEAST_TIMED = 3
"""Single products after which it is foreseen how long all of them take; chosen."""

Key = tuple[str, str]
"""A toolchain and the precision that it rounds to: devices have several."""


def key_of(instance: ToolchainInstance) -> Key:
    """Return the toolchain of an instance and the precision that it rounds to."""
    return instance.toolchain, instance.precision


@dataclass(frozen=True, kw_only=True)
class ChosenPrecision:
    """Which products may be rounded.

    Attributes:
        data: Without the candidates that round other products.
        rounding: What was found out of rounding single products.
    """

    data: ProblemData
    rounding: Rounding = field(default_factory=Rounding)


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What the choice is made for."""

    model: ImportedModel
    menu: Menu
    data: ProblemData
    samples: RunSamples
    race: Race
    reduced: Sequence[ToolchainInstance]
    """An instance of every toolchain in each reduced precision."""
    control: RunControl
    """Its cancel flag is set when the stage's time is over, too."""
    ends_at: float
    """When the stage's time is over, on the monotonic clock."""

    @property
    def numbers(self) -> dict[OperatorNumber, NodeIndex]:
        """Return the model's products by their operator numbers."""
        graph = self.model.graph
        return {n: i for i, n in graph.operator_number.items() if graph.nodes[i].op in PRODUCTS}


def seconds_for_precision(task: RunTask, menu: Menu) -> float:
    """Return the seconds that the stage has to itself; 0 where it does not take place."""
    wanted = task.settings.precision in MANTISSA_BITS and not task.is_quick
    return SHARE * task.settings.budget_s if wanted and _reduced(menu) else 0.0


def _reduced(menu: Menu) -> list[ToolchainInstance]:
    """Return an instance of every toolchain in each reduced precision: its first."""
    found: dict[Key, ToolchainInstance] = {}
    for source in menu.sources:
        if is_reduced(source.instance):
            found.setdefault(key_of(source.instance), source.instance)
    return [*found.values()]


def choose_precision(
    task: RunTask,
    menu: Menu,
    data: ProblemData,
    samples: RunSamples,
    race: Race,
    budget: RunBudget,
    control: RunControl,
) -> ChosenPrecision:
    """Have whole models in two precisions enter the race, and filter the candidates.

    There is nothing to do where no reduced precision is admitted or no toolchain has an instance in
    it, and in a quick confirmation.
    """
    seconds = seconds_for_precision(task, menu)
    if not seconds:
        return ChosenPrecision(data=data)
    question = _Question(
        model=task.open_model.model,
        menu=menu,
        data=data,
        samples=samples,
        race=race,
        reduced=_reduced(menu),
        control=control.within(min(seconds, budget.to_improve_s)),
        ends_at=time.monotonic() + min(seconds, budget.to_improve_s),
    )
    with control.stage("precision") as report:
        report.progress(0, 1, say.EMULATING)
        whole = _whole_models(question)
        chosen: dict[Key, Products] = dict.fromkeys(whole.kept, frozenset(question.numbers))
        nothing = whole.nothing_to_choose()
        if nothing is not None:
            report.detail = nothing
            return ChosenPrecision(data=_admitted(question, data, chosen))
        try:
            threads = max(instance.threads for instance in question.reduced)
            precision = task.settings.precision
            emulation = RoundingEmulation(question.model, precision, threads=threads)
        except ToolchainError as error:
            control.warn(say.NOT_EMULATED.format(reason=error))
            return ChosenPrecision(data=_admitted(question, data, chosen))
        choices: _Choices | None = None
        found: dict[Key, ProductChoice] = {}
        trials: list[RoundingTrial] = []
        try:
            choices = _Choices(question, emulation, SINGLE_ERRORS_SHARE * seconds)
            able = _able(question, whole)
            instances = {key_of(one): one for one in (*able, *question.reduced)}
            found = {
                key: choices.of(one) for key, one in instances.items() if key not in whole.kept
            }
            chosen |= {key: choice.products for key, choice in found.items()}
            trials += choices.whole_models(whole)
            for number, instance in enumerate(able):
                report.progress(number, len(able), say.BUILDING_PRECISION)
                choice = found[key_of(instance)]
                _enter(question, choices, instance, choice, chosen, trials)
        except Cancelled:
            if control.cancelled.is_set():
                raise
            control.cut("precision")
        data = with_trial_costs(question.model, menu, data, race.results())
        keep_costs(task.open_model, menu, question.data, data)
        rounded = [chosen[key] for key in found]
        report.detail = say.PRODUCTS_ROUNDED.format(
            rounded=max(map(len, rounded), default=0),
            products=len(emulation.products),
        )
        rounding = Rounding(
            products=() if choices is None else choices.products(rounded, [*found.values()]),
            ranked_for=next((toolchain for toolchain, _ in found), ""),
            tried=tuple(trials),
        )
    return ChosenPrecision(data=_admitted(question, data, chosen), rounding=rounding)


@dataclass(frozen=True, kw_only=True)
class ReducedWholeModels:
    """What the race knows of whole models in reduced precision."""

    kept: Mapping[Key, float | None]
    """The errors of those within the tolerance."""
    broken: Mapping[Key, float | None]
    """The errors of those that break it."""
    us: Mapping[Key, float]
    """The microseconds of both; some were not timed."""
    full_us: Mapping[str, float]
    """The microseconds of whole models in float32, by toolchain."""
    best_us: float
    """The microseconds of the best placement within the tolerance; infinite: there is none."""

    def may_be_faster(self, key: Key) -> bool:
        """Tell whether one is not known to be slower than the best within the tolerance."""
        return self.us.get(key, 0.0) < self.best_us

    def nothing_to_choose(self) -> str | None:
        """Return why no products have to be chosen, in a phrase; None: they have to."""
        if self.kept and not self.broken:
            return say.ALL_KEEP_TOLERANCE
        if self.broken and not any(map(self.may_be_faster, self.broken)):
            return say.NOTHING_FASTER
        return None


def _whole_models(question: _Question) -> ReducedWholeModels:
    """Sort whole models in reduced precision by whether they keep the tolerance, and time all."""
    race = question.race
    whole = [one for one in race.results() if one.contender.kind == "whole-model"]
    tried = [one for one in whole if one.max_rel_error is not None]
    found = {key_of(one.contender.cover[0].instance): one for one in tried if one.reduced}
    full_us: dict[str, float] = {}
    for one in tried:
        if not one.reduced and one.measured_us is not None:
            name = one.contender.cover[0].instance.toolchain
            full_us[name] = min(one.measured_us, full_us.get(name, math.inf))
    kept = {key: one for key, one in found.items() if one.reason is None}
    broken = {key: one for key, one in found.items() if one.reason is not None}
    us = {key: one.measured_us for key, one in kept.items() if one.measured_us is not None}
    leader_us = None if race.leader is None else race.time_us(race.leader)
    if leader_us is not None:
        contenders = [one.contender for one in broken.values()]
        times = race.time_apart(
            contenders, ends_at=question.ends_at, tolerance=max(1.0, question.samples.tolerance)
        )
        us |= {
            key: times[one.contender.name]
            for key, one in broken.items()
            if one.contender.name in times
        }
    return ReducedWholeModels(
        kept={key: one.max_rel_error for key, one in kept.items()},
        broken={key: one.max_rel_error for key, one in broken.items()},
        us=us,
        full_us=full_us,
        best_us=leader_us or math.inf,
    )


class _Choices:
    """The sets of products that toolchains may round."""

    def __init__(self, question: _Question, emulation: RoundingEmulation, single_s: float) -> None:
        """Find out what rounding does.

        Args:
            question: What the choice is made for.
            emulation: The model with rounding that can be switched.
            single_s: Seconds for the errors of single products.
        """
        self._question = question
        self._emulation = emulation
        self._samples = question.samples.all
        self._outputs = [name for name, _ in question.model.outputs]
        self._tolerance = question.samples.tolerance
        work = work_of_operators(question.data.graph)
        self._operations = {p.number: work[p.number].operations for p in emulation.products}
        everything = frozenset(self._operations)
        self._of_all = [self._share(sample, everything) for sample in self._samples]
        """The error with all products rounded, by sample."""
        self._alone = self._single_errors(single_s)

    def _share(self, sample: Sample, products: Products) -> float:
        """Return the largest error of any output on a sample, over what the output is allowed."""
        self._question.control.check()
        truth = [sample.truth[name] for name in self._outputs]
        found = self._emulation.errors(products, sample.inputs, truth)
        shares = [0.0]
        for name, error in zip(self._outputs, found, strict=True):
            if name in sample.unchecked:
                continue
            allowed = min(self._tolerance, sample.bounds.get(name, self._tolerance))
            shares.append(0.0 if error == 0 else error / allowed if allowed else math.inf)
        return max(shares)

    def error_of(self, products: Products) -> float:
        """Return the same on all samples."""
        return max(self._share(sample, products) for sample in self._samples)

    def _single_errors(self, seconds: float) -> dict[OperatorNumber, float] | None:
        """Return each product's own error on the worst sample; None where there is no time."""
        worst = self._samples[self._of_all.index(max(self._of_all))]
        found: dict[OperatorNumber, float] = {}
        began = time.monotonic()
        for number in self._operations:
            found[number] = self._share(worst, frozenset({number}))
            each_s = (time.monotonic() - began) / len(found)
            if len(found) >= LEAST_TIMED and each_s * len(self._operations) > seconds:
                return None
        return found

    def of(self, instance: ToolchainInstance, bound: float = BOUND) -> ProductChoice:
        """Return the set of products that an instance may round.

        Args:
            instance: The instance; what it would not round (Winograd's products) has no value.
            bound: The largest emulated error, as a share of what outputs are allowed.
        """
        graph, toolchain = self._question.model.graph, get(instance.toolchain)
        values = {
            product.number: self._operations[product.number]
            * rounds(toolchain, graph, product.index, instance)
            for product in self._emulation.products
        }
        return choose_products(values, self._alone, self.error_of, bound)

    def whole_models(self, whole: ReducedWholeModels) -> list[RoundingTrial]:
        """Return the whole models with all products rounded, for documents."""
        emulated = _finite(max(self._of_all) * self._tolerance)
        return [
            RoundingTrial(
                toolchain=key[0],
                rounded=len(self._operations),
                emulated_error=emulated,
                max_rel_error=_finite(error),
                measured_us=whole.us.get(key),
                reason=say.BREAKS_TOLERANCE if key in whole.broken else None,
            )
            for key, error in (*whole.kept.items(), *whole.broken.items())
        ]

    def products(
        self, chosen: Sequence[Products], found: Sequence[ProductChoice]
    ) -> tuple[RoundedProduct, ...]:
        """Return what is known of each product, for documents.

        Args:
            chosen: The sets that toolchains may round in the end.
            found: What was chosen first; ranks are those of the first order.
        """
        rounded = frozenset().union(*chosen)
        alone = {} if self._alone is None else self._alone
        order = found[0].order if found else ()
        ranks = {number: rank for rank, number in enumerate(order)}
        return tuple(
            RoundedProduct(
                operator=number,
                operations=operations,
                error=_finite(alone.get(number, math.inf) * self._tolerance),
                rounded=number in rounded,
                rank=ranks.get(number),
            )
            for number, operations in self._operations.items()
        )


def _finite(value: float | None) -> float | None:
    """Return a number that JSON can hold: None for infinity and NaN."""
    return value if value is not None and math.isfinite(value) else None


def _able(question: _Question, whole: ReducedWholeModels) -> list[ToolchainInstance]:
    """Return the instances on which the choice is built, the one that is likely to win first.

    They can leave single products in float32, do not keep the tolerance as they are, and are not
    known to be slower with all products rounded than what keeps it. Where the whole model was not
    timed in reduced precision, it is taken for twice as fast as in float32, as it is at most.
    """
    able = [
        one
        for one in question.reduced
        if about(one.toolchain).mixes_precision
        and key_of(one) not in whole.kept
        and whole.may_be_faster(key_of(one))
    ]
    us = {
        one.id: whole.us.get(key_of(one), whole.full_us.get(one.toolchain, math.inf) / 2)
        for one in able
    }
    least = min(us.values(), default=math.inf)
    near = [one for one in able if us[one.id] <= NEAR * least]
    return sorted(near, key=lambda instance: us[instance.id])


def _enter(
    question: _Question,
    choices: _Choices,
    instance: ToolchainInstance,
    choice: ProductChoice,
    chosen: dict[Key, Products],
    trials: list[RoundingTrial],
) -> None:
    """Build the whole model with products rounded, until its real error is within the tolerance.

    Args:
        question: What the choice is made for.
        choices: Chooses the products.
        instance: The instance in reduced precision.
        choice: The products that are tried first.
        chosen: Takes the products that kept the tolerance; none where no build did.
        trials: Takes what was built.
    """
    tolerance = question.samples.tolerance
    ends_at = math.inf  # the first build is what the stage is for: it may take time of later ones
    for _ in range(MOST_BUILDS):
        if not choice.products:
            break
        cover = (_whole_model(question, instance, choice.products),)
        contender = Contender(name=COLLAGE, kind="collage", cover=cover)
        trial = question.race.try_cover(with_eligibility(question.data, contender), ends_at=ends_at)
        ends_at, error = question.ends_at, trial.max_rel_error
        trials.append(
            RoundingTrial(
                toolchain=instance.toolchain,
                rounded=len(choice.products),
                emulated_error=choice.error * tolerance,
                max_rel_error=_finite(error),
                measured_us=next(iter(trial.partitions_us.values()), None),
                reason=trial.failure or None,
            )
        )
        if error is None:
            return  # it was not run: what the emulation says stands
        chosen[key_of(instance)] = frozenset() if trial.failure else choice.products
        if not trial.failure:
            return
        # An output may break a bound below the tolerance: then the factor is 1 at least.
        bound = CORRECTED_BOUND * choice.error / max(1.0, error / tolerance)
        choice = choices.of(instance, bound)


def _whole_model(question: _Question, instance: ToolchainInstance, rounded: Products) -> Candidate:
    """Return the whole model as one candidate that leaves all but some products in float32."""
    model = question.model
    everything = tuple(sorted(model.graph.operator_number.values()))
    kept = [
        place
        for place, number in enumerate(everything)
        if model.graph.nodes[model.graph.operators[number]].op in PRODUCTS and number not in rounded
    ]
    made = make_candidate(
        model.graph, careful(instance, kept), everything, rule="precision", protected=True
    )
    form = KeyMaker(model.graph, model.constant).form_of(made)
    return msgspec.structs.replace(made, key=question.menu.keys.key(form, made.instance))


def _admitted(
    question: _Question, data: ProblemData, chosen: Mapping[Key, Products]
) -> ProblemData:
    """Return the data without candidates that round products which must not be rounded.

    A candidate that leaves some products in float32 was built for the choice, and stays.
    """
    graph, products = question.model.graph, question.numbers

    def keeps(candidate: Candidate) -> bool:
        instance = candidate.instance
        if not is_reduced(instance) or instance.option(FULL):
            return True
        toolchain, allowed = get(instance.toolchain), chosen.get(key_of(instance), frozenset())
        return all(
            number in allowed or not rounds(toolchain, graph, products[number], instance)
            for number in candidate.nodes
            if number in products
        )

    return data.with_candidates(filter(keeps, data.candidates), data.costs)
