"""The stage that finds out which products may be rounded, before anything else is measured.

Where reduced precision is admitted, the whole model in it is fast and mostly breaks the tolerance,
and in float32 it is slow. Between them lies the placement that rounds as many products as the
tolerance allows. Here they are chosen once, as soon as the run has a first answer:

1. What rounding does to the outputs is emulated (``lowering/rounding_emulation.py``): of all
   products, of each by itself, and of sets of products (``trials/product_choice.py``), on all
   samples.
2. The whole model with the chosen set is built on each toolchain that can leave single products in
   float32, libraries before what is compiled kernel by kernel. It enters the race at once.
3. Its measured error corrects the choice where it breaks the tolerance: it was off by a factor,
   which the next bound takes into account.

From then on candidates in reduced precision take part in covers only where all products that they
round are in the set, so that the search needs no bound on errors.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from collage_engine.candidates.catalog import CandidateCatalog, with_keys
from collage_engine.lowering.rounding_emulation import MANTISSA_BITS, RoundingEmulation
from collage_engine.machine.device import allowed_processors
from collage_engine.machine.run_control import RunControl
from collage_engine.model.importer import ImportedModel
from collage_engine.partition.candidate import make_candidate
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.candidate import Candidate
from collage_engine.records.graph import OperatorNumber
from collage_engine.records.operators import work_of_operators
from collage_engine.records.precision import (
    FULL,
    PRODUCTS,
    RoundedProduct,
    Rounding,
    RoundingTrial,
    float32_nodes,
    is_reduced,
    keep_float32,
)
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.task import RunState
from collage_engine.support.errors import Cancelled, ToolchainError
from collage_engine.support.time_limits import STEP_SHARE
from collage_engine.toolchains.registry import about, get
from collage_engine.trials.contender import Contender, Sample, finite, with_eligibility
from collage_engine.trials.product_choice import ProductChoice, Products, choose_products
from collage_engine.trials.race import Race

SHARE = 0.25
"""Share of the run's budget that whole models before the stage leave to it: on seven models
emulation took 1 to 5 s of a minute, and one to three builds the rest."""
BOUND = 0.95
"""Share of the tolerance that a set's error may take, first as emulated, then corrected by that of
a build. Built for real on TVM, the error was 0.95 to 1.09 times the emulated one on seven models,
on oneDNN up to 1.6 times; a second build takes a third of a second there."""
MOST_BUILDS = 3
"""Builds on one toolchain at most: the second knows by what factor the error was off, the third
what is left of it."""

Key = tuple[str, str]
"""A toolchain and the precision that it rounds to: devices have several."""


def key_of(instance: ToolchainInstance) -> Key:
    """Return the toolchain of an instance and the precision that it rounds to."""
    return instance.toolchain, instance.precision


@dataclass(frozen=True, kw_only=True)
class ChosenPrecision:
    """Which products may be rounded.

    Attributes:
        rounding: What was found out of rounding single products.
        allowed: The operators that each toolchain may round; None: there was nothing to choose.
        unreached: Whole models with chosen products rounded that the stage had no time for.
    """

    rounding: Rounding = field(default_factory=Rounding)
    allowed: Mapping[Key, Products] | None = None
    unreached: tuple[Contender, ...] = ()

    def skips(self, contender: Contender) -> bool:
        """Tell whether a whole model was raced as the choice, or breaks the tolerance by far."""
        return any(
            is_reduced(part.instance)
            and key_of(part.instance) in (self.allowed or {})
            and about(part.instance.toolchain).mixes_precision
            for part in contender.cover
        )

    def admitted(self, model: ImportedModel, inputs: SearchInputs, race: Race) -> SearchInputs:
        """Return the inputs without candidates that round products which must not be rounded.

        Where a whole model in reduced precision keeps the tolerance, all of them may be rounded. A
        candidate that leaves some products in float32 was built for the choice, and stays.
        """
        graph, chosen = model.graph, self.allowed
        if chosen is None:
            return inputs
        kept = {
            key_of(result.contender.cover[0].instance)
            for result in race.standings.results()
            if result.contender.kind == "whole-model"
            and result.reason is None
            and result.measured_us
        }

        def keeps(candidate: Candidate) -> bool:
            instance = candidate.instance
            if not is_reduced(instance) or instance.option(FULL) or key_of(instance) in kept:
                return True
            toolchain = get(instance.toolchain)
            allowed = chosen.get(key_of(instance), frozenset())
            return all(
                number in allowed
                or graph.nodes[number].op not in PRODUCTS
                or not toolchain.rounds(graph, number, instance)
                for number in candidate.nodes
            )

        return inputs.with_candidates(filter(keeps, inputs.candidates), inputs.costs)


def seconds_for_precision(state: RunState) -> float:
    """Return the seconds that the stage has to itself; 0 where it does not take place."""
    settings = state.task.settings
    wanted = settings.precision in MANTISSA_BITS and not state.task.is_quick
    return SHARE * settings.budget_s if wanted and _reduced(state.catalog) else 0.0


def _reduced(catalog: CandidateCatalog) -> dict[Key, ToolchainInstance]:
    """Return an instance of every toolchain in each reduced precision: its first."""
    instances: dict[Key, ToolchainInstance] = {}
    for source in catalog.sources:
        if is_reduced(source.instance):
            instances.setdefault(key_of(source.instance), source.instance)
    return instances


def choose_precision(state: RunState) -> ChosenPrecision:
    """Choose products that may be rounded, and have whole models that round them enter the race.

    There is nothing to do where no reduced precision is admitted or no toolchain has an instance in
    it, and in a quick confirmation.
    """
    seconds = seconds_for_precision(state)
    if not seconds:
        return ChosenPrecision()
    task, control, race = state.task, state.control, state.race
    part = control.within(race.clock.to_improve_s)
    with control.stage("precision") as report:
        report.progress(0, 1, "what rounding each product does")
        model, precision = task.open_model.model, task.settings.precision
        try:
            emulation = RoundingEmulation(model, precision, threads=len(allowed_processors()))
        except ToolchainError as error:
            control.warn(
                "which products may be rounded is not known, so that only whole models are tried "
                f"in reduced precision: {error}"
            )
            return ChosenPrecision(allowed={})
        choosing = _Choosing(state, emulation, part)
        try:
            choosing.choose(STEP_SHARE * min(seconds, race.clock.to_improve_s))
            report.progress(0, 1, "the whole model with some products rounded")
            choosing.enter()
        except Cancelled:
            if control.cancelled.is_set():
                raise
            control.cut("precision")
        rounded = sum(product.rounded for product in choosing.rounding().products)
        report.detail = f"{rounded} of {len(emulation.products)} products may be rounded"
        return ChosenPrecision(
            rounding=choosing.rounding(),
            allowed=choosing.allowed,
            unreached=tuple(choosing.unreached),
        )


class _Choosing:
    """The choice of one run.

    Attributes:
        allowed: The operators that each toolchain may round.
        unreached: Whole models that there was no time for.
    """

    def __init__(self, state: RunState, emulation: RoundingEmulation, control: RunControl) -> None:
        self._state, self._model = state, state.task.open_model.model
        self._race, self._samples = state.race, state.samples
        self._emulation, self._control = emulation, control
        self._instances = _reduced(state.catalog)
        able = [one for one in self._instances.values() if about(one.toolchain).mixes_precision]
        self._able = sorted(able, key=lambda one: state.catalog.source(one.id).lowers_to_tir)
        work = work_of_operators(state.inputs.graph)
        self._operations = {number: work[number].operations for number in emulation.products}
        self._alone: dict[OperatorNumber, float] | None = None
        # Toolchains that round the same products search among the same sets.
        self._error_of = cache(self._largest_share)
        self._first: dict[Key, ProductChoice] = {}
        self._trials = _whole_models(state.race, len(self._operations))
        self.allowed: dict[Key, Products] = {}
        self.unreached: list[Contender] = []

    def choose(self, seconds: float) -> None:
        """Choose products for every toolchain.

        Args:
            seconds: Seconds for the errors of single products.
        """
        everything = frozenset(self._operations)
        of_all = [self._share(sample, everything) for sample in self._samples.all]
        if max(of_all) > BOUND:
            worst = self._samples.all[of_all.index(max(of_all))]
            self._alone = self._single_errors(worst, seconds)
        for key, instance in self._instances.items():
            self._first[key] = self._chosen(instance, BOUND)
            self.allowed[key] = self._first[key].products

    def _chosen(self, instance: ToolchainInstance, bound: float) -> ProductChoice:
        """Return the set of products that an instance may round.

        Args:
            instance: The instance; what it would not round (Winograd's products) has no value.
            bound: The largest emulated error, as a share of what outputs are allowed.
        """
        graph, toolchain = self._model.graph, get(instance.toolchain)
        values = {
            number: operations * toolchain.rounds(graph, number, instance)
            for number, operations in self._operations.items()
        }
        return choose_products(values, self._alone, self._error_of, bound)

    def _largest_share(self, products: Products) -> float:
        """Return the largest error of any output on all samples, over what it is allowed."""
        return max(self._share(sample, products) for sample in self._samples.all)

    def _share(self, sample: Sample, products: Products) -> float:
        """Return the largest error of any output on one sample, over what it is allowed."""
        self._control.check()
        names, most = [name for name, _ in self._model.outputs], self._samples.tolerance
        truth = [sample.truth[name] for name in names]
        shares = [0.0]
        errors = self._emulation.errors(products, sample.inputs, truth)
        for name, error in zip(names, errors, strict=True):
            if name not in sample.unchecked:
                allowed = min(most, sample.bounds.get(name, most))
                shares.append(0.0 if error == 0 else error / allowed if allowed else math.inf)
        return max(shares)

    def _single_errors(self, worst: Sample, seconds: float) -> dict[OperatorNumber, float] | None:
        """Return each product's own error on a sample; None where there is no time for all."""
        errors: dict[OperatorNumber, float] = {}
        began = time.monotonic()
        for number in self._operations:
            errors[number] = self._share(worst, frozenset({number}))
            each_s = (time.monotonic() - began) / len(errors)
            if each_s * len(self._operations) > seconds:
                return None
        return errors

    def enter(self) -> None:
        """Build the whole model with the chosen products rounded on each toolchain that can.

        What breaks the tolerance is chosen anew by its real error, and built again.
        """
        pending = {solution: self._first[key_of(solution)] for solution in self._able}
        ends_at = math.inf
        for _ in range(MOST_BUILDS):
            for instance, choice in [*pending.items()]:
                del pending[instance]
                if choice.products:
                    bound = self._try(instance, choice, ends_at)
                    if bound is not None:
                        pending[instance] = self._chosen(instance, bound)
            ends_at = time.monotonic() + STEP_SHARE * self._race.clock.to_improve_s

    def _try(
        self, instance: ToolchainInstance, choice: ProductChoice, ends_at: float
    ) -> float | None:
        """Have the whole model with products rounded enter the race.

        Returns:
            The bound for another choice, where it breaks the tolerance; else None.
        """
        tolerance = self._samples.tolerance
        made = self._whole_model(instance, choice)
        contender = with_eligibility(self._state.inputs, Contender(cover=(made,)))
        trial = self._race.try_cover(contender, ends_at=ends_at)
        if not trial.reached:
            self.unreached.append(contender)
            return None
        error = trial.max_rel_error
        self._trials.append(
            RoundingTrial(
                toolchain=instance.toolchain,
                rounded=len(choice.products),
                emulated_error=choice.error * tolerance,
                max_rel_error=finite(error),
                measured_us=next(iter(trial.partitions_us.values()), None),
                reason=trial.reason,
            )
        )
        if error is None:
            return None  # it was not run: what the emulation says stands
        left = float32_nodes(made.instance)
        rounded = frozenset(n for index, n in enumerate(made.nodes) if index not in left)
        self.allowed[key_of(instance)] = frozenset() if trial.reason else rounded
        # An output may break a bound below the tolerance: then the factor is 1 at least.
        bound = BOUND * choice.error / max(1.0, error / tolerance)
        return bound if trial.reason else None

    def _whole_model(self, instance: ToolchainInstance, choice: ProductChoice) -> Candidate:
        """Return the whole model as one candidate that leaves all but some products in float32."""
        graph = self._model.graph
        everything = graph.operators
        kept = [
            index
            for index, number in enumerate(everything)
            if graph.nodes[number].op in PRODUCTS and number not in choice.products
        ]
        if len(choice.products) == len(choice.order):
            kept = []  # nothing that matters is left out: it is the whole model in this precision
        made = make_candidate(graph, keep_float32(instance, kept), everything, rule="precision")
        return with_keys(self._model, self._state.catalog.keys, [made])[0]

    def rounding(self) -> Rounding:
        """Return what was found out, for documents.

        Ranks are those of the first choice on the toolchain where it was fastest; where the stage
        ended before that, products are ranked by depth.
        """
        us = {trial.toolchain: trial.measured_us for trial in self._trials if trial.measured_us}
        best = min(self._able, key=lambda one: us.get(one.toolchain, math.inf), default=None)
        first = None if best is None else self._first.get(key_of(best))
        order = [*reversed(self._operations)] if first is None else first.order
        ranks = {number: rank for rank, number in enumerate(order)}
        rounded = frozenset().union(*self.allowed.values())
        alone = {} if self._alone is None else self._alone
        products = tuple(
            RoundedProduct(
                operator=number,
                operations=operations,
                error=finite(alone.get(number, math.inf) * self._samples.tolerance),
                rounded=number in rounded,
                rank=ranks.get(number),
            )
            for number, operations in self._operations.items()
        )
        return Rounding(
            products=products,
            ranked_for="" if best is None else best.toolchain,
            tried=tuple(self._trials),
        )


def _whole_models(race: Race, products: int) -> list[RoundingTrial]:
    """Return what came of whole models with all products rounded, for documents."""
    return [
        RoundingTrial(
            toolchain=result.contender.cover[0].instance.toolchain,
            rounded=products,
            max_rel_error=finite(result.max_rel_error),
            measured_us=result.measured_us,
            reason=result.reason,
        )
        for result in race.standings.results()
        if result.contender.kind == "whole-model"
        and result.contender.reduced
        and result.max_rel_error is not None
    ]
