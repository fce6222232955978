"""The step that enumerates the candidates and refuses at once what cannot be placed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from collage_engine.candidates.catalog import CandidateCatalog, Probing, runtime_facts
from collage_engine.candidates.host_candidates import pinned_to_host
from collage_engine.candidates.open_model import missing_precision
from collage_engine.lowering.link import linker
from collage_engine.machine.cuda import choose_target
from collage_engine.machine.run_control import RunControl
from collage_engine.planning.infeasible import WithoutCandidates
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.candidate import Candidate
from collage_engine.records.pin import Pin
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainAbout
from collage_engine.run.stages.search import no_cover_error
from collage_engine.run.task import RunTask
from collage_engine.search.api import Search, solve
from collage_engine.support.errors import InfeasibleError, ToolchainFault
from collage_engine.support.text import counted
from collage_engine.support.time_limits import SHORTEST_RUN_S
from collage_engine.toolchains.asking import asking
from collage_engine.toolchains.registry import about
from collage_engine.trials.baselines import check_placements

SET_UP_SHARE = 0.35
"""Share of the time left that compiling what toolchains need, once per machine, may take: 21 s of a
minute, which all of them together were measured to take on two quiet processors."""


def enumerate_candidates(
    task: RunTask, control: RunControl, *, begins: bool = False
) -> tuple[CandidateCatalog, SearchInputs]:
    """Enumerate what every toolchain could run of the model, with the costs that the store holds.

    Toolchains that are not ready in time are left out, unless there is no placement without them:
    then they are waited for.

    Args:
        task: What the run was asked for.
        control: Takes progress, the candidates and warnings.
        begins: Whether a run on a device begins with what is ready: the others are made ready
            beside it, on processors that it hardly uses, and join it (``is_joined_later``).

    Raises:
        InfeasibleError: The pins contradict each other, or a node has no toolchain.
        CollageError: The user's own placements name what does not exist.
        ToolchainError: There is no linker, without which no placement can be exported.
    """
    linker()
    model, settings = task.open_model.model, task.settings
    with control.stage("enumerate") as report:
        report.progress(0, 1, "what the toolchains can run of the model")

        def on_probe(name: str) -> None:
            what = f"looking for {name}; what it needs is compiled, once per machine"
            report.progress(0, 1, what)

        waited_for = named_toolchains(task.pins, settings)
        beside = is_joined_later(task)
        ready_by = time.monotonic() + (0.0 if beside and begins else set_up_s(control.left_s()))
        while True:
            probing = Probing(
                on_probe=on_probe, ready_by=ready_by, waited_for=waited_for, beside=beside
            )
            catalog = task.open_model.catalog(
                settings, pinned_to_host(task.pins), probing, control.faults
            )
            for state in catalog.states:
                if state.fault:
                    control.faults.leave_out(state.name, state.reason or "")
            missed = {
                name: about.title
                for name in catalog.not_ready
                if (about := _about(name)) is not None and catalog.target.kind in about.targets
            }
            late = [not_ready_in_words(list(missed.values()))] if missed else []
            out = [control.faults.sentence(name) for name in control.faults.left_out]
            names = [toolchain.name for toolchain in catalog.states]
            check_placements(model.graph.record, model.record.folded, settings, names)
            inputs = _search_inputs(task, catalog)
            try:
                _check_that_a_cover_exists(inputs, catalog.without_candidates, [*late, *out])
            except InfeasibleError:
                if not missed:
                    raise
                waited_for |= frozenset(missed)  # late is better than no answer
            else:
                break
        for sentence in () if beside and begins else late:
            control.warn(sentence)
        distinct = len({candidate.key for candidate in catalog.candidates})
        report.detail = f"{counted(len(catalog.candidates), 'candidate')}, {distinct:,} distinct"
        control.emit(catalog.update)
    lacking = missing_precision(settings.precision, [o.instance for o in catalog.sources])
    if lacking:
        control.warn(lacking)
    return catalog, inputs


def is_joined_later(task: RunTask) -> bool:
    """Tell whether a run, one on a device that is here, begins with what is ready."""
    choice = choose_target(task.settings.target)
    return choice.kind != "cpu" and choice.device is not None


def _search_inputs(task: RunTask, catalog: CandidateCatalog) -> SearchInputs:
    runtimes = dict.fromkeys(source.instance.toolchain for source in catalog.sources)
    model = task.open_model.model
    return SearchInputs(
        graph=model.graph.record,
        candidates=catalog.candidates,
        costs=catalog.costs,
        constants=runtime_facts(tuple(runtimes), model.record.weights_bytes),
        pins=task.pins,
        settings=task.settings,
    )


def named_toolchains(pins: Sequence[Pin], settings: RunSettings) -> frozenset[str]:
    """Return the names of the toolchains that pins and the user's own placements speak of."""
    instances = [pin.toolchain for pin in pins if pin.toolchain]
    instances += [name for placement in settings.placements for name in placement.values()]
    return frozenset(name.partition("[")[0] for name in instances)


def set_up_s(left_s: float) -> float:
    """Return the seconds for which a run waits for what toolchains need to be compiled.

    Args:
        left_s: Seconds that the run has left.
    """
    return max(SHORTEST_RUN_S, SET_UP_SHARE * left_s)


def _about(name: str) -> ToolchainAbout | None:
    """Return what a toolchain says of itself; None where it fails to."""
    try:
        with asking(name):
            return about(name)
    except ToolchainFault:
        return None


def not_ready_in_words(titles: Sequence[str]) -> str:
    """Return a sentence about toolchains that the run does without until they are compiled."""
    are, were = ("is", "it was") if len(titles) == 1 else ("are", "they were")
    return (
        f"{', '.join(titles)} {are} left out of this run: {were} not ready within "
        f"{100 * SET_UP_SHARE:.0f} % of the budget. What a toolchain needs is compiled and tried "
        "once per machine; run `collage toolchains` beforehand, or give a larger --budget"
    )


def _check_that_a_cover_exists(
    inputs: SearchInputs, without_candidates: WithoutCandidates, left_out: Sequence[str] = ()
) -> None:
    """Raise InfeasibleError if there is no cover even where every candidate is free of charge.

    Args:
        inputs: The candidates, with the pins.
        without_candidates: Why instances have no candidate for an operator.
        left_out: Sentences on the toolchains that the run does without.
    """
    free = inputs.at_equal_costs()
    some = _smallest(free.candidates, inputs.pins)
    smallest = free.with_candidates(some, free.costs).problem()
    if Search(smallest).find(smallest.pins, regrets=False).cost is not None:
        return
    answer = solve(free.problem())
    if answer.infeasible is not None:
        error = no_cover_error(inputs, answer, without_candidates)
        raise InfeasibleError("; ".join([str(error), *left_out]), error.details)


def _smallest(candidates: Sequence[Candidate], pins: Sequence[Pin]) -> list[Candidate]:
    """Return the candidates among which there is most often a cover, if there is any.

    They are the smallest ones of every operator, and all that hold a pinned one: for a model with
    80,000 candidates a few thousand.
    """
    pinned = {operator for pin in pins for operator in pin.nodes}
    least: dict[int, int] = {}
    for candidate in candidates:
        size = len(candidate.nodes)
        for operator in candidate.nodes:
            least[operator] = min(size, least.get(operator, size))
    return [
        candidate
        for candidate in candidates
        if not pinned.isdisjoint(candidate.nodes)
        or any(len(candidate.nodes) == least[o] for o in candidate.nodes)
    ]
