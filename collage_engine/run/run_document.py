"""What a run found out, as one record: the document that ``collage place --json`` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from collage_engine.candidates.open_model import Menu, Workspace, threads_of
from collage_engine.partition.candidate import make_candidate
from collage_engine.planning.limits import limit_verdicts, size_warning
from collage_engine.planning.problem import make_placement, make_problem, pin_verdicts
from collage_engine.records.accuracy import Accuracy
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Baseline, CandidateCounts, Placement, Residual, Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.tuning import TuneCounts
from collage_engine.run.memory import memory_use
from collage_engine.search.api import check
from collage_engine.search.problem import Answer
from collage_engine.trials.confirmation import Confirmation
from collage_engine.trials.contender import ContenderResult
from collage_engine.tuning.tables import tables_of


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Everything a run knows when it ends."""

    run_id: str
    started_at: str
    workspace: Workspace
    menu: Menu
    settings: RunSettings
    pins: tuple[Pin, ...]
    records: list[CandidateRecord]
    """With their costs."""
    constants: dict[str, float]
    counts: CandidateCounts
    answer: Answer
    placements: Sequence[Placement]
    """The covers that were confirmed, in the order of their contenders."""
    confirmation: Confirmation
    warnings: list[str]
    tuning: TuneCounts | None = None
    accuracy: Accuracy | None = None

    def document(self, chosen: Placement, seconds: dict[str, float], artifact: str | None) -> Run:
        """Everything that was found out, as one record."""
        winner = self.confirmation.winner
        rows = [
            self.baseline(o) for o in self.confirmation.outcomes if o.contender.kind != "collage"
        ]
        best = min((b.measured_us for b in rows if b.measured_us is not None), default=None)
        ours = next(
            (
                o.measured_us
                for o in self.confirmation.outcomes
                if o.contender.kind == "collage" and o.measured_us is not None
            ),
            None,
        )
        record = self.workspace.model.record
        bound = self.answer.lower_bound_us
        memory = memory_use(winner, record.weights_bytes, artifact)
        return Run(
            id=self.run_id,
            name=self.settings.name,
            model={
                "path": record.path,
                "sha256": record.sha256,
                "nodes": record.nodes,
                "folded": list(record.folded),
            },
            target=self.settings.target,
            threads=threads_of(self.settings),
            toolchains=self.menu.states,
            candidates=self.counts,
            placement=chosen,
            baselines=rows,
            winner=self.confirmation.named,
            pins=pin_verdicts(self.pins, self.answer),
            max_abs_error=winner.max_abs_error,
            max_rel_error=winner.max_rel_error,
            seconds=seconds,
            artifact=artifact,
            started_at=self.started_at,
            settings=msgspec.to_builtins(msgspec.structs.replace(self.settings, inputs_npz=None)),
            residual=_residual(self.confirmation),
            lower_bound_us=bound,
            optimality_loss_us=(self.answer.cost_us - bound)
            if self.answer.cost_us and bound
            else None,
            apparent_loss_us=ours - best if ours is not None and best is not None else None,
            device=self.menu.device_text,
            peak_memory_bytes=winner.peak_memory_bytes,
            memory=memory,
            warnings=[*self.warnings, *size_warning(memory.artifact_bytes, self.settings)],
            limits=limit_verdicts(self.answer),
            accuracy=self.accuracy,
            costs={r.id: r.cost for r in self.records if r.cost.state != "unknown"},
            rivals=self.runners_up(),
            tuning=self.tuning,
            tied=self._tied(),
            tables=tables_of(chosen),
        )

    def _tied(self) -> list[str]:
        winner = self.confirmation.winner
        apart = self.confirmation.differences
        by_name = {o.contender.name: o for o in self.confirmation.outcomes}
        return [
            name
            for name, outcome in by_name.items()
            if name != winner.contender.name
            and (name == "collage" or outcome.contender.kind != "collage")
            and name in apart
            and apart[name].tied
        ]

    def exported(self) -> Placement:
        """The placement that was exported, with its end-to-end times."""
        winner = self.confirmation.winner
        if winner.contender.kind == "collage":
            placement = self.placements[winner.contender.order]
        else:
            placement = self.as_placement(winner)
        in_place = dict(enumerate(self.confirmation.in_place_us))
        parts = placement.partitions
        if winner.built is not None:
            # The builder may run partitions in another order than the search listed them.
            by_nodes = {part.nodes: part for part in parts}
            parts = tuple(
                msgspec.structs.replace(
                    by_nodes[built.operators], id=f"p{k}", in_place_us=in_place.get(k)
                )
                for k, built in enumerate(winner.built.parts)
            )
        measured = winner.measured_us
        estimated = placement.estimated_us
        return msgspec.structs.replace(
            placement,
            partitions=parts,
            measured_us=measured,
            spread_us=winner.spread_us,
            additive_error_us=(
                measured - estimated if measured is not None and estimated is not None else None
            ),
            spin=bool(winner.built and winner.built.spin),
        )

    def runners_up(self) -> list[Placement]:
        """The search's covers that are not exported, with their end-to-end times."""
        found = []
        for outcome in self.confirmation.outcomes:
            if outcome.contender.kind != "collage" or outcome is self.confirmation.winner:
                continue
            placement = self.placements[outcome.contender.order]
            measured, estimated = outcome.measured_us, placement.estimated_us
            found.append(
                msgspec.structs.replace(
                    placement,
                    measured_us=measured,
                    spread_us=outcome.spread_us,
                    additive_error_us=(
                        measured - estimated
                        if measured is not None and estimated is not None
                        else None
                    ),
                )
            )
        return found

    def as_placement(self, outcome: ContenderResult) -> Placement:
        """A baseline's cover as a placement; its estimate where its candidates were measured."""
        found = {r.id: r for r in self.records}
        records = []
        for part in outcome.contender.cover:
            made = make_candidate(
                self.workspace.model.graph,
                part.instance,
                tuple(part.operators),
                rule=outcome.contender.kind,
                takes=part.takes,
                gives=part.gives,
            )
            records.append(found.get(made.id, made))
        return make_placement(
            self.workspace.model.graph.record,
            {r.id: r for r in records},
            [r.id for r in records],
            self.estimate(records),
            self.settings.percentile,
        )

    def estimate(self, records: Sequence[CandidateRecord]) -> float | None:
        """What the search would say a cover costs; None when a part was never measured."""
        if not all(record.cost.usable for record in records):
            return None
        problem = make_problem(
            self.workspace.model.graph.record, records, (), self.constants, self.settings
        )
        problem = msgspec.structs.replace(problem, constraints=None)
        cost = check(problem, [record.id for record in records])
        return cost if isinstance(cost, float) else None

    def baseline(self, outcome: ContenderResult) -> Baseline:
        contender = outcome.contender
        assert contender.kind != "collage"
        estimated = self.as_placement(outcome).estimated_us if contender.cover else None
        return Baseline(
            name=contender.name,
            kind=contender.kind,
            measured_us=outcome.measured_us,
            spread_us=outcome.spread_us,
            estimated_us=estimated,
            reason=outcome.reason,
            partitions=max(1, len(contender.cover)),
            reduced=outcome.reduced,
            max_rel_error=_finite(outcome.max_rel_error),
            barred=contender.barred,
            order=tuple(dict.fromkeys(part.instance.toolchain for part in contender.cover)),
        )


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _residual(confirmation: Confirmation) -> list[Residual]:
    """Kernels outside every partition, calls of one name together."""
    found: dict[str, list[float]] = {}
    for kernel in confirmation.residual:
        found.setdefault(kernel.kernel, []).append(kernel.us)
    return [Residual(name=name, calls=len(times), us=sum(times)) for name, times in found.items()]
