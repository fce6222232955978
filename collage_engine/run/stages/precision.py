"""The stage that finds out which products may be rounded, before anything else is measured.

Where reduced precision is admitted, the whole model in it is fast and mostly breaks the tolerance,
and in float32 it is slow. Between them lies the placement that rounds as many products as the
tolerance allows. Here they are chosen once:

1. What rounding does to the outputs is emulated (``lowering/rounding_emulation.py``): of each
   product by itself, and of sets of products (``trials/product_choice.py``), on all samples.
2. The whole model with the chosen set is built on each toolchain that can leave single products in
   float32 and whose float32 is near the fastest of them. It enters the race at once.
3. Its measured error corrects the choice where it breaks the tolerance: it was off by a factor,
   which the next bound takes into account.

From then on candidates in reduced precision take part in covers only where all products that they
round are in the set, so that the search needs no bound on errors.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from collage_engine.candidates.menu import Menu
from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.lowering.rounding_emulation import MANTISSA_BITS, RoundingEmulation
from collage_engine.model.importer import ImportedModel
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.accuracy import RoundedProduct, RoundingTrial
from collage_engine.records.candidate import Candidate
from collage_engine.records.errors import Cancelled, ToolchainError
from collage_engine.records.numbering import OperatorNumber
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
"""Share of the tolerance that a set's emulated error may take: built for real, the error was at
most 1.22 times the emulated one on five models, and mostly within 14 % of it."""
CORRECTED_BOUND = 0.95
"""The same where the factor between the real error and the emulated one is known."""
MOST_BUILDS = 3
"""Builds on one toolchain at most: the second knows that factor, the third what is left of it."""
NEAR = 1.3
"""Times the fastest toolchain's time of the whole model in float32 up to which a toolchain's
reduced precision is tried: bfloat16 is at most twice as fast, and about as much for all."""
SINGLE_ERRORS_SHARE = 0.4
"""Share of the stage's time for the errors of single products; without them the products are chosen
by depth."""


@dataclass(frozen=True, kw_only=True)
class ChosenPrecision:
    """Which products may be rounded.

    Attributes:
        data: Without the candidates that round other products.
        rounding: What rounding each product does and saves, in the model's order; empty: nothing
            was found out.
        rounding_trials: The whole models that were built with some of their products rounded.
    """

    data: ProblemData
    rounding: tuple[RoundedProduct, ...] = ()
    rounding_trials: tuple[RoundingTrial, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What the choice is made for."""

    model: ImportedModel
    menu: Menu
    data: ProblemData
    samples: RunSamples
    race: Race
    reduced: Sequence[ToolchainInstance]
    """The instances in reduced precision."""
    control: RunControl
    """Its cancel flag is set when the stage's time is over, too."""
    ends_at: float
    """When the stage's time is over, on the monotonic clock."""


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
    precision = task.settings.precision
    reduced = [source.instance for source in menu.sources if is_reduced(source.instance)]
    if precision not in MANTISSA_BITS or not reduced or task.is_quick:
        return ChosenPrecision(data=data)
    seconds = min(SHARE * task.settings.budget_s, budget.to_improve_s)
    question = _Question(
        model=task.open_model.model,
        menu=menu,
        data=data,
        samples=samples,
        race=race,
        reduced=reduced,
        control=control.within(seconds),
        ends_at=time.monotonic() + seconds,
    )
    with control.stage("precision") as report:
        report.progress(0, 1, say.EMULATING)
        try:
            threads = max(instance.threads for instance in reduced)
            emulation = RoundingEmulation(question.model, precision, threads=threads)
        except ToolchainError as error:
            control.warn(say.NOT_EMULATED.format(reason=error))
            return ChosenPrecision(data=_admitted(question, data, {}))
        chosen: dict[str, Products] = {}
        rounding: tuple[RoundedProduct, ...] = ()
        trials: list[RoundingTrial] = []
        try:
            choices = _Choices(question, emulation, SINGLE_ERRORS_SHARE * seconds)
            for name in {instance.toolchain: None for instance in reduced}:
                chosen[name] = choices.of(name).products
            rounding = choices.products(chosen.values())
            able = _able(question)
            for number, instance in enumerate(able):
                report.progress(number, len(able), say.BUILDING_PRECISION)
                chosen[instance.toolchain] = _enter(question, choices, instance, trials)
        except Cancelled:
            if control.cancelled.is_set():
                raise
            control.cut("precision")
        data = with_trial_costs(question.model, menu, data, race.results())
        keep_costs(task.open_model, menu, question.data, data)
        report.detail = say.PRODUCTS_ROUNDED.format(
            rounded=max((len(products) for products in chosen.values()), default=0),
            products=len(emulation.products),
        )
    return ChosenPrecision(
        data=_admitted(question, data, chosen), rounding=rounding, rounding_trials=tuple(trials)
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
        everything = frozenset(self._operations)
        began = time.monotonic()
        worst = max(self._samples, key=lambda sample: self._share(sample, everything))
        each_s = (time.monotonic() - began) / len(self._samples)
        if each_s * len(everything) > seconds:
            return None
        return {number: self._share(worst, frozenset({number})) for number in self._operations}

    def of(self, toolchain: str, bound: float = BOUND) -> ProductChoice:
        """Return the set of products that a toolchain may round.

        Args:
            toolchain: Its name; what it would not round (Winograd's products) has no value.
            bound: The largest emulated error, as a share of what outputs are allowed.
        """
        graph = self._question.model.graph
        instance = next(i for i in self._question.reduced if i.toolchain == toolchain)
        values = {
            product.number: self._operations[product.number]
            * rounds(get(toolchain), graph, product.index, instance)
            for product in self._emulation.products
        }
        return choose_products(values, self._alone, self.error_of, bound)

    def products(self, chosen: Iterable[Products]) -> tuple[RoundedProduct, ...]:
        """Return what is known of each product, for documents.

        Args:
            chosen: The sets that toolchains may round.
        """
        rounded = frozenset().union(*chosen)
        return tuple(
            RoundedProduct(
                operator=number,
                operations=operations,
                error=None if self._alone is None else self._alone[number] * self._tolerance,
                rounded=number in rounded,
            )
            for number, operations in self._operations.items()
        )


def _able(question: _Question) -> list[ToolchainInstance]:
    """Return the reduced instances that can leave products in float32, the fastest first.

    A toolchain is as fast as its whole model in float32 was in the race; where none of them was
    timed there, all of them are tried as far as there is time.
    """
    took: dict[str, float] = {}
    for result in question.race.results():
        contender = result.contender
        if contender.kind == "whole-model" and not contender.reduced and result.measured_us:
            name = contender.cover[0].instance.toolchain
            took[name] = min(took.get(name, math.inf), result.measured_us)
    able = [i for i in question.reduced if about(i.toolchain).mixes_precision]
    timed = [i for i in able if i.toolchain in took]
    fastest = min((took[i.toolchain] for i in timed), default=math.inf)
    near = [i for i in timed if took[i.toolchain] <= NEAR * fastest]
    return sorted(near, key=lambda instance: took[instance.toolchain]) or able


def _enter(
    question: _Question,
    choices: _Choices,
    instance: ToolchainInstance,
    trials: list[RoundingTrial],
) -> Products:
    """Build the whole model with products rounded, until its real error is within the tolerance.

    Args:
        question: What the choice is made for.
        choices: Chooses the products.
        instance: The instance in reduced precision.
        trials: Takes what was built.

    Returns:
        The products that kept the tolerance; none where no build did.
    """
    tolerance, bound = question.samples.tolerance, BOUND
    for _ in range(MOST_BUILDS):
        choice = choices.of(instance.toolchain, bound)
        if not choice.products:
            break
        cover = (_whole_model(question, instance, choice.products),)
        contender = Contender(name=COLLAGE, kind="collage", cover=cover)
        trial = question.race.try_cover(
            with_eligibility(question.data, contender), ends_at=question.ends_at
        )
        error = trial.max_rel_error
        trials.append(
            RoundingTrial(
                toolchain=instance.toolchain,
                rounded=len(choice.products),
                emulated_error=choice.error * tolerance,
                max_rel_error=error,
                reason=trial.failure,
            )
        )
        if error is None:
            break
        if trial.failure is None:
            return choice.products
        # An output may break a bound below the tolerance: then the factor is 1 at least.
        bound = CORRECTED_BOUND * choice.error / max(1.0, error / tolerance)
    return frozenset()


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
    question: _Question, data: ProblemData, chosen: Mapping[str, Products]
) -> ProblemData:
    """Return the data without candidates that round products which must not be rounded.

    A candidate that leaves some products in float32 was built for the choice, and stays.
    """
    graph = question.model.graph
    products = {
        number: index
        for index, number in graph.operator_number.items()
        if graph.nodes[index].op in PRODUCTS
    }

    def keeps(candidate: Candidate) -> bool:
        instance = candidate.instance
        if not is_reduced(instance) or instance.option(FULL):
            return True
        toolchain, allowed = get(instance.toolchain), chosen.get(instance.toolchain, frozenset())
        return all(
            number in allowed or not rounds(toolchain, graph, products[number], instance)
            for number in candidate.nodes
            if number in products
        )

    return data.with_candidates(filter(keeps, data.candidates), data.costs)
