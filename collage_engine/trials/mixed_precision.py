"""Partitions in two precisions: those products stay in float32 whose rounding costs most.

Where the fastest cover breaks the tolerance, replacing whole partitions by their float32 selves
pays twice: their own time, and conversions at new borders. A toolchain that can leave single
products of a partition in float32 (``ToolchainAbout.mixes_precision``) needs neither: its
partitions become candidates again with as many products in float32 as a share of their burden
demands, those first that bring most for the time they take. Each is measured like every other
candidate and has to win.

A product's burden is the square of what rounding it does to the model's outputs: its isolated
error (where it was not measured alone: the usual one) times how far the model carries it on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from collage_engine.partition.candidate import make_candidate
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost_table import CostTable
from collage_engine.records.numbering import NodeIndex, OperatorNumber
from collage_engine.records.precision import FULL, PRODUCTS, careful, is_reduced
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.search.problem import CandidateId
from collage_engine.store.keys import KeyMaker

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

LEVELS = (2.0, 1.0, 0.5, 0.25)
"""Shares of the burden that would just keep the tolerance, at which partitions become candidates;
the first breaks it unless errors partly cancel, which only the whole model shows; chosen."""
SMALLEST = 1e-3
"""Share of a partition's burden below which a product is rounded in any case; chosen."""

KeyOf = Callable[[str, ToolchainInstance], str]
"""Returns the measurement key of a canonical form on a toolchain instance."""


def products_of(model: ImportedModel) -> dict[OperatorNumber, NodeIndex]:
    """Return the graph index of each of the model's products, by its operator number.

    Products are the operators that are faster in reduced precision
    (``records.precision.PRODUCTS``).
    """
    graph = model.graph
    return {
        number: index
        for index, number in graph.operator_number.items()
        if graph.nodes[index].op in PRODUCTS
    }


def burdens(
    products: Mapping[OperatorNumber, NodeIndex],
    candidates: Sequence[Candidate],
    errors: Mapping[CandidateId, float],
    factors: Mapping[int, float],
) -> dict[int, float]:
    """Return what rounding each product does to the model's outputs, squared.

    Args:
        products: The graph index of each product, by operator number.
        candidates: All candidates.
        errors: Isolated relative errors by candidate. A candidate in reduced precision that holds
            one product only tells that product's error; the median stands for the others'.
        factors: How far the model carries errors of a node to its outputs, by graph index.

    Returns:
        The burden of each product, by operator number, without a unit.
    """
    isolated: dict[int, float] = {}
    for candidate in candidates:
        inside = [number for number in candidate.nodes if number in products]
        if len(inside) == 1 and is_reduced(candidate.instance) and errors.get(candidate.id):
            error = errors[candidate.id]
            isolated[inside[0]] = min(error, isolated.get(inside[0], error))
    usual = statistics.median(isolated.values()) if isolated else 1.0
    return {
        number: (isolated.get(number, usual) * factors.get(index, 1.0)) ** 2
        for number, index in products.items()
    }


def left_full(
    inside: Iterable[int], burden: Mapping[int, float], effort: Mapping[int, float], share: float
) -> frozenset[int]:
    """Choose the products of some partitions that stay in float32.

    Products are taken by burden over effort until no more than the share of the burden is left.
    Those that are not needed after all are given back, the most expensive ones first. This is the
    greedy method for the knapsack problem.

    Args:
        inside: Operator numbers of the products in the partitions.
        burden: What rounding each of them does, by operator number.
        effort: The operations of each of them, by operator number: about half of their time is lost
            by leaving them in float32.
        share: Share of the burden of all of them that may be left.

    Returns:
        The operator numbers of the products that stay in float32.
    """
    numbers = list(inside)
    total = sum(burden[number] for number in numbers)
    if total <= 0:
        return frozenset()
    allowed = share * total
    order = sorted(numbers, key=lambda n: burden[n] / max(effort[n], 1e-9), reverse=True)
    chosen: list[int] = []
    left = total
    for number in order:
        if left <= allowed:
            break
        if burden[number] < SMALLEST * total:
            continue
        chosen.append(number)
        left -= burden[number]
    for number in sorted(chosen, key=lambda n: effort[n], reverse=True):
        if left + burden[number] <= allowed:
            chosen.remove(number)
            left += burden[number]
    return frozenset(chosen)


def mixed_candidates(
    model: ImportedModel,
    known_ids: Collection[str],
    partitions: Sequence[Candidate],
    shares: Sequence[float],
    burden: Mapping[int, float],
    effort: Mapping[int, float],
    key_of: KeyOf,
) -> list[Candidate]:
    """Return candidates like some partitions, but with a part of their products in float32.

    Args:
        model: The model.
        known_ids: Ids of candidates that there are already, which are not returned.
        partitions: The candidates in reduced precision to start from.
        shares: Shares of the burden of all partitions together that may be left; there is a
            candidate of each partition for each of them.
        burden: What rounding each product does, by operator number.
        effort: The operations of each product, by operator number.
        key_of: Returns the measurement key of a canonical form on an instance.

    Returns:
        The candidates, which nobody has measured; without those in which nothing or everything
        would stay in float32.
    """
    products = products_of(model)
    makers = KeyMaker(model.graph, model.constant)
    inside = [n for p in partitions for n in p.nodes if n in products]
    found: dict[str, Candidate] = {}
    for share in shares:
        full = left_full(inside, burden, effort, share)
        for old in partitions:
            places = [k for k, number in enumerate(old.nodes) if number in full]
            if not places or len(places) == sum(n in products for n in old.nodes):
                continue
            instance = careful(old.instance, places)
            made = make_candidate(
                model.graph,
                instance,
                old.nodes,
                rule="mixed",
                composites=old.composites,
                protected=True,
                device=old.device,
                takes=old.takes,
                gives=old.gives,
            )
            if made.id in known_ids or made.id in found:
                continue
            key = key_of(makers.form_of(made), instance)
            found[made.id] = msgspec.structs.replace(made, key=key)
    return list(found.values())


def to_mix(
    candidates: Sequence[Candidate],
    costs: CostTable,
    cover: Sequence[str],
    operators: int,
    able: Iterable[str],
) -> list[list[Candidate]]:
    """Return the sets of partitions of which candidates in two precisions are made.

    Args:
        candidates: All candidates.
        costs: Their costs.
        cover: Ids of the candidates of the fastest cover.
        operators: How many operators the model has.
        able: The toolchains that can leave single products of a partition in float32.

    Returns:
        A set for each able toolchain that runs the whole model, and one of the cover's partitions
        in reduced precision. The fastest candidate of an able toolchain on the same operators
        stands in for a partition of another toolchain, where there is one.
    """
    names = frozenset(able)
    usable = [
        c
        for c in candidates
        if is_reduced(c.instance)
        and costs.cost(c.id).usable
        and c.instance.toolchain in names
        and not c.instance.option(FULL)
    ]
    sets = [[c] for c in usable if len(c.nodes) == operators]
    by_id = {candidate.id: candidate for candidate in candidates}
    mixable = {candidate.id for candidate in usable}
    same: dict[object, Candidate] = {}
    for candidate in sorted(usable, key=lambda c: costs.cost(c.id).us):
        same.setdefault(_work(candidate), candidate)
    parts = [by_id[name] for name in cover if name in by_id]
    found = [
        part if part.id in mixable else same[_work(part)]
        for part in parts
        if is_reduced(part.instance) and _work(part) in same
    ]
    if found and [c.id for c in found] not in [[c.id for c in each] for each in sets]:
        sets.append(found)
    return sets


def _work(candidate: Candidate) -> object:
    """Return a value that is equal for candidates that can stand in for each other in any cover."""
    takes, gives = sorted(candidate.takes.items()), sorted(candidate.gives.items())
    return candidate.nodes, candidate.device, tuple(takes), tuple(gives)
