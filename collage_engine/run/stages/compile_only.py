"""A placement for a device that is not here: compiled and exported, never timed.

There is nothing to search on, so nothing is claimed to be fastest: the user's own placement if
one was given, else greedy partitioning in the user's order of toolchains, which is what one has
without measuring. Costs stay unknown, and the artifact says that it was not measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.build.build_job import BuildCover
from collage_engine.build.built import BuiltModule
from collage_engine.candidates.host_offers import pinned_to_host
from collage_engine.candidates.inputs import model_tolerance, representative_inputs
from collage_engine.candidates.open_model import Menu, Workspace, threads_of
from collage_engine.candidates.pins import breaks_pin
from collage_engine.control.run_control import RunControl
from collage_engine.lowering.reference import original_outputs
from collage_engine.machine.worker import Worker
from collage_engine.partition.call_graph import call_graph
from collage_engine.partition.candidate import make_candidate
from collage_engine.planning.problem import make_placement, make_problem, with_conversions
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.counted import counted
from collage_engine.records.errors import InfeasibleError, ToolchainError
from collage_engine.records.pin import Pin, PinVerdict
from collage_engine.records.placement import Baseline, CandidateCounts, Run
from collage_engine.records.results import RunOutcome
from collage_engine.records.settings import RunSettings
from collage_engine.trials.baselines import unmeasured_choices
from collage_engine.trials.contender import Contender

UNMEASURED = "unmeasured"
"""What a run's ``winner`` says when nothing could be timed."""
BUILD_SECONDS = 1800.0


def compile_only(
    workspace: Workspace,
    menu: Menu,
    control: RunControl,
    settings: RunSettings,
    pins: tuple[Pin, ...],
    *,
    out: str | None,
    run_id: str,
    started_at: str,
) -> RunOutcome:
    """Build and export the first choice that can be built; the run's document says unmeasured.

    Raises InfeasibleError when no choice honours the pins, ToolchainError when none can be built.
    """
    reason = menu.unmeasurable or ""
    warning = (
        f"nothing was measured ({reason}): the placement follows the order of the toolchains, and "
        "nobody knows whether it is fastest"
    )
    notices = [warning]
    if settings.tune_budget_s > 0:
        notices.append(f"nothing was tuned ({reason}): kernels are tuned by timing them there")
    for text in notices:
        control.warn(text)
    calls = call_graph(workspace.model.graph)
    choices = unmeasured_choices(calls, menu, settings, pinned_to_host(pins))
    honouring = [
        contender
        for contender in choices
        if contender.reason is None and not any(breaks_pin(contender.cover, pin) for pin in pins)
    ]
    if not honouring:
        broken = [contender for contender in choices if contender.reason is None]
        raise InfeasibleError(
            "no placement that can be chosen without measuring honours the pins"
            if broken
            else f"no toolchain can compile this model for {settings.target}: "
            + "; ".join(f"{contender.name}: {contender.reason}" for contender in choices),
            {"reason": "pins" if broken else "uncovered", "pins": [], "nodes": []},
        )
    inputs = representative_inputs(workspace.model, settings)
    truth = original_outputs(workspace.model, inputs)
    with control.stage("build") as report:
        chosen, folder, built, refused = _build_first(workspace, honouring, control)
        count = len(built.parts)
        report.detail = f"{chosen.name}, {counted(count, 'partition')}"
    records = _records(workspace, menu, built)
    placement = make_placement(
        workspace.model.graph.record, {r.id: r for r in records}, [r.id for r in records], None
    )
    known = {candidate.id for candidate in menu.records}
    extra = [r for r in records if r.id not in known]
    problem = make_problem(
        workspace.model.graph.record, [*menu.records, *extra], pins, {}, settings
    )
    placement = with_conversions(placement, problem)
    versions = {state.name: state.version or "" for state in menu.states if state.version}
    artifact = None
    if out is not None:
        with control.stage("export") as report:
            contents = ArtifactContents(
                inputs=inputs,
                outputs=truth,
                tolerance=settings.tolerance or model_tolerance(workspace.model, settings),
                placement=placement,
                target=menu.target_text,
                versions=versions,
                unmeasured=reason,
            )
            write_artifact(workspace.model, folder, Path(out), contents)
            report.detail = artifact = out
    record = workspace.model.record
    run = Run(
        id=run_id,
        name=settings.name,
        model={
            "path": record.path,
            "sha256": record.sha256,
            "nodes": record.nodes,
            "folded": list(record.folded),
        },
        target=menu.target_text,
        threads=threads_of(settings),
        toolchains=menu.states,
        candidates=CandidateCounts(
            enumerated=len(menu.records),
            distinct=len({c.key for c in menu.records}),
            skipped=len({c.key for c in menu.records}),
        ),
        placement=placement,
        baselines=[
            Baseline(
                name=contender.name,
                kind=contender.kind,
                reason=refused.get(contender.name, contender.reason) or "not measured",
                partitions=len(contender.cover),
            )
            for contender in choices
            if contender.name != chosen.name and contender.kind != "collage"
        ],
        winner=UNMEASURED,
        pins=[PinVerdict(pin=pin.text or pin.kind, state="honoured") for pin in pins],
        max_abs_error=None,
        max_rel_error=None,
        seconds=control.total_seconds(),
        artifact=artifact,
        started_at=started_at,
        settings=msgspec.to_builtins(msgspec.structs.replace(settings, inputs_npz=None)),
        device=f"none: {reason}",
        warnings=control.warnings,
        note=f"{chosen.name}, unmeasured",
    )
    return RunOutcome(
        candidates=[*menu.records, *extra], not_offered=menu.not_offered, constants={}, run=run
    )


def _build_first(
    workspace: Workspace, contenders: Sequence[Contender], control: RunControl
) -> tuple[Contender, Path, BuiltModule, dict[str, str]]:
    """The first one that builds, its folder and its module; why the ones before it did not."""
    model = workspace.model.record
    refused: dict[str, str] = {}
    with Worker("collage_engine.build.build_job:BuildJob", name="collage-build") as worker:
        for contender in contenders:
            folder = Path(tempfile.mkdtemp(prefix="unmeasured-", dir=workspace.folder)) / "module"
            request = BuildCover(
                model=model.path,
                shapes=dict(model.shapes),
                cover=contender.cover,
                spin=None,
                folder=str(folder),
                sha256=model.sha256,
            )
            try:
                built = worker.call(request, timeout_s=BUILD_SECONDS, cancel=control.cancelled)
            except ToolchainError as error:
                refused[contender.name] = str(error)
                continue
            return contender, folder, built, refused
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
    raise ToolchainError(f"no placement could be built ({reasons})")


def _records(workspace: Workspace, menu: Menu, built: BuiltModule) -> list[CandidateRecord]:
    """The candidates of a built module, in the order they run; costs are unknown."""
    by_work = {(c.instance.id, c.nodes): c for c in menu.records}
    found = []
    for part in built.parts:
        nodes = tuple(sorted(part.operators))
        known = by_work.get((part.instance.id, nodes))
        if known is None:
            known = make_candidate(workspace.model.graph, part.instance, nodes, rule="greedy")
        found.append(known)
    return found
