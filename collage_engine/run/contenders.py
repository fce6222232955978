"""Which contenders may win a run, and which of them are tried first.

The candidates of an earlier run's placement, which later catalogs may not have, are made here, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from collage_engine.candidates.catalog import CandidateCatalog
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.candidate import make_candidate
from collage_engine.planning.search_inputs import Cover, SearchInputs
from collage_engine.records.graph import OperatorNumber
from collage_engine.records.placement import Run
from collage_engine.records.precision import FULL, PRECISION
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.task import RunState
from collage_engine.toolchains.capabilities import ProfilesLayers
from collage_engine.toolchains.registry import about, get
from collage_engine.trials.baselines import baselines, pinned_cover, pinned_covers
from collage_engine.trials.contender import Contender, with_eligibility


def first_contenders(state: RunState) -> list[Contender]:
    """Return the contenders that are tried before anything is measured in isolation.

    They are each toolchain alone on the whole model, and what it becomes under pins; the user's own
    placements; where a toolchain cannot take all of it, greedy partitioning with it first; and
    where none of these keeps the pins and the deployment limits, a cover that does.

    Returns:
        The contenders, the ones that are likely to be fastest first.
    """
    catalog, inputs, calls = state.catalog, state.inputs, state.task.open_model.model.graph
    contenders = [
        with_eligibility(inputs, baseline)
        for baseline in baselines(calls, catalog, inputs.settings)
        if baseline.reason is None and baseline.cover
    ]
    whole = [contender for contender in contenders if contender.kind == "whole-model"]
    alone = {contender.cover[0].instance.toolchain for contender in whole}
    users = [contender for contender in contenders if contender.kind == "user"]
    greedy = [
        contender
        for contender in contenders
        if contender.kind == "greedy"
        and any(candidate.instance.toolchain not in alone for candidate in contender.cover)
    ]
    pinned = [
        one
        for cover in (pinned_covers(calls, catalog, inputs.pins) if inputs.pins else ())
        if (one := with_eligibility(inputs, cover)).eligible
    ]
    first = list({one.key: one for one in [*pinned, *whole, *users, *greedy]}.values())
    if not any(contender.eligible for contender in first):
        first += [contender for contender in contenders if contender.eligible][
            :1
        ] or _few_partitions(inputs)
    return sorted(first, key=lambda one: _sort_key(one, state))


def placement_under_pins(state: RunState) -> list[Contender]:
    """Return the placement of the run before, changed as the pins ask, as a list of one.

    The list is empty where it keeps the pins already, and where no such cover can be made.
    """
    catalog, inputs, graph = state.catalog, state.inputs, state.task.open_model.model.graph
    cover = cover_before(state)
    if cover is None or with_eligibility(inputs, Contender(cover=cover)).eligible:
        return []
    places = {source.instance.id: number for number, source in enumerate(catalog.sources)}
    owner = [0] * len(graph)
    for part in cover:
        for operator in part.nodes:
            owner[operator] = places[part.instance.id]
    pinned = pinned_cover(graph, catalog, inputs.pins, owner)
    changed = [] if pinned is None else [with_eligibility(inputs, pinned)]
    return [contender for contender in changed if contender.eligible]


def cover_before(state: RunState) -> Cover | None:
    """Return the cover of the run before.

    It is None where there is none, or where a toolchain of it is no longer there.
    """
    previous = state.task.previous
    if previous is None or previous.placement is None:
        return None
    cover = candidates_of_run(state.task.open_model.model.graph, previous)
    return cover if all(c.instance.id in state.catalog.instances for c in cover) else None


def before_precision(contenders: Sequence[Contender], catalog: CandidateCatalog) -> list[Contender]:
    """Return the whole models that enter before products are chosen that may be rounded.

    Two kinds enter: the float32 runtime that is ready soonest, which gives a first answer; and the
    toolchains that round all products or none, for which there is nothing to choose. The others
    wait for the choice of products.

    Args:
        contenders: All whole models, the ones that are likely to be fastest first.
        catalog: The toolchain instances.
    """
    full = [
        contender for contender in contenders if contender.eligible and not contender.reduced
    ] or contenders
    first = sorted(full, key=lambda one: _preparation(one, catalog))[:1]
    return first + [
        contender
        for contender in contenders
        if contender.reduced
        and not is_secondary(contender)
        and not any(about(part.instance.toolchain).mixes_precision for part in contender.cover)
    ]


def is_secondary(contender: Contender) -> bool:
    """Tell whether a contender is another configuration, or a greedy partitioning.

    A reduced precision is none: where it is admitted, what it does to whole models decides on all
    that follows.
    """
    configured = ({name for name, _ in part.instance.config} for part in contender.cover)
    return contender.kind == "greedy" or any(names - {PRECISION, FULL} for names in configured)


def _sort_key(contender: Contender, state: RunState) -> tuple[bool, bool, float, bool, int]:
    """Return a key that sorts contenders, the one that is likely to be fastest first.

    Those that may win, and the user's own, come first; then those of which the store knows the
    costs, by these; then each toolchain's default configuration alone: complete runtimes, which
    optimise whole models and are ready soon, before what TVM compiles kernel by kernel; last the
    secondary ones.
    """
    costs = [state.inputs.costs.cost(candidate.id) for candidate in contender.cover]
    is_known = all(cost.usable for cost in costs)
    return (
        not contender.eligible and contender.kind != "user",
        not is_known,
        sum(cost.median_us or 0.0 for cost in costs) if is_known else 0.0,
        is_secondary(contender),
        _preparation(contender, state.catalog),
    )


def _preparation(contender: Contender, catalog: CandidateCatalog) -> int:
    """Return how long the instances of a contender take to be ready, as a rank.

    It is 0 for complete runtimes, 1 with a library, and 2 with what TVM compiles.
    """

    def rank(instance: ToolchainInstance) -> int:
        if isinstance(get(instance.toolchain), ProfilesLayers):
            return 0
        return 2 if catalog.source(instance.id).lowers_to_tir else 1

    return max(rank(candidate.instance) for candidate in contender.cover)


def _few_partitions(inputs: SearchInputs) -> list[Contender]:
    """Return a cover of few partitions that keeps the pins and limits, as a list of one contender.

    The list is empty where there is no such cover.
    """
    covers = inputs.at_equal_costs().search().covers
    return [with_eligibility(inputs, Contender(cover=cover)) for cover in covers[:1]]


def candidates_of_run(graph: DataflowGraph, run: Run) -> Cover:
    """Return the candidates of a run's placement, made anew from its document.

    Args:
        graph: The model's graph.
        run: The run's document, which has a placement.

    Returns:
        The candidates in the order in which they run, without measurement keys.
    """
    assert run.placement is not None
    return tuple(
        make_candidate(
            graph,
            part.toolchain_instance(1 if part.architecture else run.threads),
            tuple(map(OperatorNumber, part.nodes)),
            rule="earlier run",
            takes=part.takes,
            gives=part.gives,
        )
        for part in run.placement.partitions
    )
