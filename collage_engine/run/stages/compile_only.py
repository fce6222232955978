"""The steps of a run whose device is not here: a placement is compiled and exported, never timed.

There is nothing to search on, so nothing is claimed to be fastest: the user's own placement is
taken if one was given, else greedy partitioning in the user's order of toolchains, which is what
one has without measuring. Costs stay unknown, and the artifact says that it was not measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.build.build_job import BuildCover
from collage_engine.build.built import BuiltModule
from collage_engine.candidates.host_candidates import pinned_to_host
from collage_engine.candidates.inputs import (
    ModelSample,
    model_samples,
    run_tolerance,
    unchecked,
)
from collage_engine.candidates.menu import Menu
from collage_engine.candidates.open_model import OpenModel
from collage_engine.candidates.pins import breaks_pin
from collage_engine.control.run_control import RunControl
from collage_engine.machine.worker import Worker
from collage_engine.partition.call_graph import call_graph
from collage_engine.records.candidate import Candidate
from collage_engine.records.counted import counted
from collage_engine.records.errors import InfeasibleError, ToolchainError
from collage_engine.records.placement import Placement
from collage_engine.records.time_limits import JOB_S
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.stages.samples import refuse_unchecked, sample_warnings
from collage_engine.run.task import RunTask
from collage_engine.trials.baselines import unmeasured_choices
from collage_engine.trials.contender import Contender

UNMEASURED = "unmeasured"
"""The ``winner`` of a run in which nothing could be timed."""


@dataclass(frozen=True, kw_only=True)
class CompileOnlyResult:
    """The first choice that could be built."""

    data: ProblemData
    """With the built module's partitions among the candidates."""
    contenders: tuple[Contender, ...]
    """Everything that one can choose without measuring, in order of preference."""
    built: Contender
    refused: dict[str, str]
    """Why choices before it could not be built, by name."""
    module_folder: Path
    sample: ModelSample
    """The run's inputs and the true outputs, which the artifact is compared with."""
    chosen: Placement


def compile_unmeasured(
    task: RunTask, menu: Menu, data: ProblemData, control: RunControl
) -> CompileOnlyResult:
    """Build the first choice that honours the pins and can be built; nothing is measured.

    Raises:
        InfeasibleError: No choice honours the pins.
        MeasureError: No output could ever be checked, and an artifact is wanted.
        ToolchainError: No choice can be built.
    """
    opened = task.open_model
    reason = menu.unmeasurable or ""
    control.warn(
        f"nothing was measured ({reason}): the placement follows the order of the toolchains, and "
        "nobody knows whether it is fastest"
    )
    if data.settings.tune_budget_s > 0:
        control.warn(f"nothing was tuned ({reason}): kernels are tuned by timing them there")
    contenders = unmeasured_choices(
        call_graph(opened.model.graph), menu, data.settings, pinned_to_host(data.pins)
    )
    possible = _possible(contenders, data)
    sample, *_ = samples = model_samples(opened.model, data.settings)
    not_finite = unchecked(samples)
    if task.out is not None:
        outputs = [name for name, _ in opened.model.outputs]
        refuse_unchecked(outputs, not_finite, data.settings)
    for sentence in sample_warnings(not_finite, data.settings):
        control.warn(sentence)
    with control.stage("build") as report:
        chosen, folder, built, refused = _build_first(opened, possible, control)
        report.detail = f"{chosen.name}, {counted(len(built.parts), 'partition')}"
    cover = _candidates_of(menu, built)
    known = {candidate.id for candidate in menu.candidates}
    new = [candidate for candidate in cover if candidate.id not in known]
    # Nothing was measured: neither costs nor hand-overs are known.
    data = data.with_candidates([*menu.candidates, *new], data.costs)
    problem = data.problem()
    return CompileOnlyResult(
        data=data,
        contenders=tuple(contenders),
        built=chosen,
        refused=refused,
        module_folder=folder,
        sample=sample,
        chosen=data.placement([candidate.id for candidate in cover], problem),
    )


def export_unmeasured(
    task: RunTask, menu: Menu, compiled: CompileOnlyResult, control: RunControl
) -> str | None:
    """Write the built module as an artifact that says it was not measured.

    Returns:
        The artifact's folder; None: the run was not asked for one.
    """
    if task.out is None:
        return None
    model, settings = task.open_model.model, task.settings
    sample = compiled.sample
    tolerance = run_tolerance(model, settings, sample.inputs)
    with control.stage("export") as report:
        contents = ArtifactContents(
            inputs=sample.inputs,
            outputs=sample.truth,
            tolerance=tolerance.value,
            by_output=tolerance.by_output,
            placement=compiled.chosen,
            target=menu.target_text,
            versions={s.name: s.version or "" for s in menu.states if s.version},
            unmeasured=menu.unmeasurable or "",
        )
        write_artifact(model, compiled.module_folder, Path(task.out), contents)
        report.detail = task.out
    return task.out


def _possible(contenders: Sequence[Contender], data: ProblemData) -> list[Contender]:
    """Return the choices that can be built and honour the pins.

    Raises:
        InfeasibleError: There are none.
    """
    buildable = [contender for contender in contenders if contender.reason is None]
    honouring = [c for c in buildable if not any(breaks_pin(c.cover, pin) for pin in data.pins)]
    if honouring:
        return honouring
    if buildable:
        raise InfeasibleError(
            "no placement that can be chosen without measuring honours the pins",
            {"reason": "pins", "pins": [], "nodes": []},
        )
    raise InfeasibleError(
        f"no toolchain can compile this model for {data.settings.target}: "
        + "; ".join(f"{contender.name}: {contender.reason}" for contender in contenders),
        {"reason": "uncovered", "pins": [], "nodes": []},
    )


def _build_first(
    open_model: OpenModel, contenders: Sequence[Contender], control: RunControl
) -> tuple[Contender, Path, BuiltModule, dict[str, str]]:
    """Build the first one that can be built.

    Returns:
        The contender, its folder, its module, and why the ones before it were refused.
    """
    model = open_model.model.record
    refused: dict[str, str] = {}
    with Worker("collage_engine.build.build_job:BuildJob", name="collage-build") as worker:
        for contender in contenders:
            scratch = tempfile.mkdtemp(prefix="unmeasured-", dir=open_model.folder)
            folder = Path(scratch) / "module"
            request = BuildCover(
                model=model.path,
                shapes=dict(model.shapes),
                cover=contender.cover,
                spin=None,
                folder=str(folder),
                sha256=model.sha256,
            )
            try:
                built = worker.call(request, timeout_s=JOB_S, cancel=control.cancelled)
            except ToolchainError as error:
                refused[contender.name] = str(error)
                continue
            return contender, folder, built, refused
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
    raise ToolchainError(f"no placement could be built ({reasons})")


def _candidates_of(menu: Menu, built: BuiltModule) -> list[Candidate]:
    """Return the candidates of a built module, in the order in which they run.

    Where the menu has a candidate for the same work it is returned, since it has a measurement key.
    """
    by_work = {(c.instance.id, c.nodes): c for c in menu.candidates}
    return [by_work.get((c.instance.id, c.nodes), c) for c in built.parts]
