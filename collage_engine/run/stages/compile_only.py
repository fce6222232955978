"""The steps of a run whose device is not here: a placement is compiled and exported, never timed.

There is nothing to search on, so nothing is claimed to be fastest: the user's own placement is
taken if one was given, else greedy partitioning in the user's order of toolchains, which is what
one has without measuring. Costs stay unknown, and the artifact says that it was not measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from collage_engine.candidates.host_candidates import pinned_to_host
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.placement import Run
from collage_engine.run.export import write
from collage_engine.run.run_document import unmeasured_document, with_nan_losses
from collage_engine.run.stages.whole_models import bench_of
from collage_engine.run.task import RunState
from collage_engine.support.errors import InfeasibleError, ToolchainError
from collage_engine.support.text import counted
from collage_engine.trials.baselines import unmeasured_choices
from collage_engine.trials.contender import Contender
from collage_engine.trials.objective import TrialSettings


def compile_unmeasured(state: RunState) -> tuple[SearchInputs, Run]:
    """Build and export the first choice that honours the pins and can be built, unmeasured.

    Returns:
        The inputs, with the built module's partitions among the candidates; the run's document.

    Raises:
        InfeasibleError: No choice honours the pins.
        ToolchainError: No choice can be built.
    """
    task, control, catalog, inputs = state.task, state.control, state.catalog, state.inputs
    reason = catalog.unmeasurable or ""
    control.warn(
        f"nothing was measured ({reason}): the placement follows the order of the toolchains, and "
        "nobody knows whether it is fastest"
    )
    if inputs.settings.tune_budget_s > 0:
        control.warn(f"nothing was tuned ({reason}): kernels are tuned by timing them there")
    calls = task.open_model.model.graph
    contenders = unmeasured_choices(calls, catalog, inputs.settings, pinned_to_host(inputs.pins))
    refused: dict[str, str] = {}
    with control.stage("build") as report, bench_of(state, TrialSettings()) as bench:
        for chosen in _possible(contenders, inputs):
            process = bench.process(chosen)
            process.build()
            if process.folder is not None and process.built is not None:
                break
            refused[chosen.name] = process.failure or ""
            control.warn(f"{chosen.title} was preferred and could not be built: {process.failure}")
        else:
            reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
            raise ToolchainError(f"no placement could be built ({reasons})")
        report.detail = f"{chosen.name}, {counted(len(process.built.parts), 'partition')}"
    # Those of the catalog also say what they take from the host and give to it.
    by_work = {
        (candidate.instance.id, candidate.nodes): candidate for candidate in catalog.candidates
    }
    cover = tuple(by_work.get((c.instance.id, c.nodes), c) for c in process.built.parts)
    known = {candidate.id for candidate in catalog.candidates}
    new = [candidate for candidate in cover if candidate.id not in known]
    # Nothing was measured: neither costs nor transitions are known.
    inputs = inputs.with_candidates([*catalog.candidates, *new], inputs.costs)
    placement = with_nan_losses(task, inputs.placement(cover))
    artifact = write(state, placement, process.folder)
    return inputs, unmeasured_document(state, placement, chosen.name, artifact)


def _possible(contenders: Sequence[Contender], inputs: SearchInputs) -> list[Contender]:
    """Return the choices that can be built and honour the pins.

    Raises:
        InfeasibleError: There are none.
    """
    buildable = [contender for contender in contenders if contender.reason is None]
    honouring = [contender for contender in buildable if not inputs.broken_pins(contender.cover)]
    if honouring:
        return honouring
    if buildable:
        raise InfeasibleError(
            "no placement that can be chosen without measuring honours the pins",
            {"reason": "pins", "pins": [], "nodes": []},
        )
    raise InfeasibleError(
        f"no toolchain can compile this model for {inputs.settings.target}: "
        + "; ".join(f"{contender.name}: {contender.reason}" for contender in contenders),
        {"reason": "uncovered", "pins": [], "nodes": []},
    )
