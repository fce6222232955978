"""The real service on recorded data: what its child process would do is played from sessions.

``python recorded_engine.py [--slow S] [--crash-after N] [--late METHOD:S] [--flood N]
[--speaks VERSION] [--noise] [--provisional] [--unmeasured] [--refuses]``. ``--once
FILE`` lets it crash only if FILE does not exist yet, and creates it. ``record.py`` makes the
sessions.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from collage_engine.planning.document_search import search_document
from collage_engine.records import protocol as p
from collage_engine.records.answers import InsideAnswer, RunUpdate
from collage_engine.records.candidate import CandidateRecord, Cost, Refusal
from collage_engine.records.event import (
    Log,
    Measured,
    Probing,
    Progress,
    Provisional,
    Stage,
)
from collage_engine.records.placement import Partition, Placement, Run
from collage_engine.records.protocol import Job
from collage_engine.records.shapes import OpenSizes, Sharing
from collage_engine.records.toolchain import ToolchainState
from collage_engine.service import engine, server
from collage_engine.service.run_client import Ticket
from collage_engine.store.document import Document
from collage_engine.support.errors import Cancelled, InfeasibleError, ModelError
from tests.support.recorded import large_graph, recorded, recorded_inside

MISSING = ToolchainState(
    name="openvino",
    available=False,
    reason="the package openvino is not installed",
    install="pip install openvino",
)
WITHHELD = "onnxruntime"
"""The toolchain of which ``--unmeasured`` keeps back the costs until a quick confirmation."""
REFUSES, LAST = "onnxruntime", 18
"""The toolchain that has no candidate for the last operator of ``small`` with ``--refuses``."""


def parsed() -> argparse.Namespace:
    """Read what is to be played, and how."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow", type=float, default=0.0, help="seconds for 20 candidates")
    parser.add_argument("--crash-after", type=int, default=0, help="candidates measured")
    parser.add_argument("--once", type=Path)
    parser.add_argument("--late", default="", help="METHOD:SECONDS")
    parser.add_argument("--flood", type=int, default=0, help="lines of the log in a run")
    parser.add_argument("--speaks", type=int, default=0)
    for flag in ("noise", "provisional", "unmeasured", "refuses"):
        parser.add_argument(f"--{flag}", action="store_true")
    return parser.parse_args()


OPTIONS = parsed()


@cache
def document_of(path: str) -> Document:
    """Return what was recorded of the model that a file's name stands for."""
    known = recorded("resnet" if "resnet" in Path(path).name else "small")
    if not OPTIONS.refuses:
        return known
    left = [c for c in known.candidates if c.instance.toolchain != REFUSES or LAST not in c.nodes]
    refusal = Refusal("judged", "matmul", "it takes no product here", REFUSES)
    return replace(known, candidates=left, without_candidates={REFUSES: {LAST: refusal}})


class RecordedChild:
    """Stands for the client of the child process: it answers a job from what was recorded."""

    def __init__(self, name: str) -> None:
        self.busy = False
        self.measured = 0
        self.known: dict[str, Cost] = {}
        """What was measured before, by candidate: the store."""

    def job(
        self,
        job: Job[Any],
        *,
        ticket: Ticket | None = None,
        on_event: Callable[[object], None] | None = None,
    ) -> Any:
        self.busy = True
        try:
            return getattr(self, type(job.request).__name__)(
                job, ticket or Ticket(), on_event or (lambda _: None)
            )
        finally:
            self.busy = False

    def cancel(self, ticket: Ticket | None = None) -> bool:
        if ticket is not None:
            ticket.cancelled.set()
        return ticket is not None

    def keep(self, ticket: Ticket | None = None) -> bool:
        if ticket is not None:
            ticket.kept.set()
        return ticket is not None

    def close(self) -> None:
        pass

    # -- models --------------------------------------------------------------------------

    def ModelOpen(self, job: Job[p.ModelOpen], *_: Any) -> p.Imported:
        path = Path(job.path)
        if not path.exists():
            raise ModelError(f"{path.name}: no such file")
        if ("open" in path.name or "nameless" in path.name) and not job.shapes:
            raise ModelError(f"{path.name} has inputs of unknown size ('x' is [batch, length])")
        if path.name.startswith("broken"):
            raise ModelError(f"{path.name} is not an ONNX file (its first bytes are no protobuf)")
        known = document_of(job.path)
        graph = large_graph() if "large" in path.name else known.graph
        model = msgspec.structs.replace(
            known.model,
            path=job.path,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            shapes=job.shapes,
            nodes=len(graph.nodes),
        )
        return model, graph

    def ModelDimensions(self, job: Job[p.ModelDimensions], *_: Any) -> OpenSizes:
        name = Path(job.path).name
        dimensions = {"batch": ("x",), "length": ("x", "y")} if "open" in name else {}
        return OpenSizes(dimensions=dimensions, inputs={"z": (1, 8)} if "nameless" in name else {})

    def ShapesResolve(self, job: Job[p.ShapesResolve], *_: Any) -> tuple[p.Shapes, ...]:
        return tuple(
            {"x": tuple(choice.dims.values()), **choice.shapes} for choice in job.request.choices
        )

    # -- a run ---------------------------------------------------------------------------

    def RunStart(
        self, job: Job[p.RunStart], ticket: Ticket, send: Callable[[object], None]
    ) -> RunUpdate:
        known, settings = document_of(job.path), job.request.settings
        quick = settings.confirmation == "quick"
        told = RunUpdate(
            candidates=[
                msgspec.structs.replace(c, cost=self.known.get(c.id, Cost(state="unknown")))
                for c in known.candidates
            ],
            without_candidates=known.without_candidates,
            constants=known.constants,
            toolchains=known.toolchains,
        )
        send(Stage(stage="enumerate"))
        send(told)
        send(Stage(stage="enumerate", done=True, seconds=0.1))
        if OPTIONS.provisional:
            send(Stage(stage="whole-models"))
            send(Provisional(run=self.first_answer(known, job)))
            send(Stage(stage="whole-models", done=True, seconds=0.1))
        send(Stage(stage="measure"))
        withheld = WITHHELD if OPTIONS.unmeasured and not quick else ""
        todo = [
            c
            for c in known.candidates
            if c.cost.state != "unknown" and c.instance.toolchain != withheld
        ]
        self.measure(todo, ticket, send)
        send(Stage(stage="measure", done=True, seconds=1.0))
        measured = {c.id: c for c in todo}
        candidates = [measured.get(c.id, c) for c in told.candidates or []]
        run = self.placed(known, job, candidates)
        run.ended = "stopped" if ticket.kept.is_set() else "finished"
        send(Stage(stage="confirm"))
        self.pause(3, ticket)
        send(Stage(stage="confirm", done=True, seconds=0.1))
        return replace(told, candidates=candidates, run=run)

    def measure(
        self, todo: list[CandidateRecord], ticket: Ticket, send: Callable[[object], None]
    ) -> None:
        for at in range(OPTIONS.flood):
            send(Log(text=f"flood {at}"))
        began = time.monotonic()
        for at, candidate in enumerate(todo):
            if ticket.kept.is_set():
                return
            if at % 20 == 0:
                rate = at / (time.monotonic() - began) if OPTIONS.slow and at else None
                send(
                    Progress(
                        stage="measure",
                        done=at,
                        total=len(todo),
                        rate=rate,
                        left_s=(len(todo) - at) / rate if rate else None,
                        now=f"{candidate.label} on {candidate.instance.toolchain}",
                        nodes=candidate.nodes,
                    )
                )
                self.pause(1, ticket)
            send(Measured(candidate=candidate.id, cost=candidate.cost))
            self.known[candidate.id] = candidate.cost
            self.measured += 1
            if 0 < OPTIONS.crash_after <= self.measured and not OPTIONS.once.exists():
                OPTIONS.once.write_text("done")
                time.sleep(0.3)  # costs are on their way
                print("recorded: about to crash", file=sys.stderr, flush=True)
                os.abort()

    def pause(self, units: int, ticket: Ticket) -> None:
        """Take some time, and end where the run was cancelled."""
        if ticket.cancelled.wait(OPTIONS.slow * units):
            raise Cancelled("cancelled; what was measured is kept")

    def first_answer(self, known: Document, job: Job[p.RunStart]) -> Run:
        """Return TVM's whole model, as it was timed before anything else was measured."""
        run = known.runs[0]
        (alone,) = (b for b in run.baselines if b.name == "tvm" and b.kind == "whole-model")
        part = Partition(
            id="p0",
            candidate="tvm:whole",
            toolchain="tvm",
            config={},
            nodes=tuple(range(len(known.graph.nodes))),
            onnx_nodes=(),
            estimated_us=None,
        )
        placement = Placement(partitions=(part,), estimated_us=None, measured_us=alone.measured_us)
        return msgspec.structs.replace(
            run,
            id=job.request.run,
            name="",
            placement=placement,
            baselines=[alone],
            winner="tvm",
            provisional=True,
            tied=[],
            rivals=[],
        )

    def placed(
        self, known: Document, job: Job[p.RunStart], candidates: list[CandidateRecord]
    ) -> Run:
        """Return the recorded run; under pins it has the placement that the search finds."""
        recorded_run, settings = known.runs[0], job.request.settings
        changes: dict[str, Any] = {
            "id": job.request.run,
            "name": settings.name,
            "settings": msgspec.to_builtins(settings),
            "confirmation": settings.confirmation,
            "warnings": [],
        }
        if OPTIONS.unmeasured and settings.confirmation != "quick":
            known_of = (b for b in recorded_run.baselines if b.name != WITHHELD)
            changes["baselines"] = list(known_of)
        if job.pins:
            document = Document(
                model=known.model,
                graph=known.graph,
                candidates=candidates,
                pins=list(job.pins),
                constants=known.constants,
                runs=list(job.runs) or [recorded_run],
            )
            answer, _ = search_document(document, settings)
            if answer.placement is None:
                raise InfeasibleError((answer.infeasible or {}).get("reason", ""))
            error_us = (recorded_run.placement and recorded_run.placement.additive_error_us) or 0.0
            placement = msgspec.structs.replace(
                answer.placement, measured_us=(answer.placement.estimated_us or 0.0) + error_us
            )
            changes |= {
                "placement": placement,
                "pins": list(answer.verdicts),
                "winner": "collage",
                "tied": [],
                "rivals": [],
            }
        return msgspec.structs.replace(recorded_run, **changes)

    # -- single questions ----------------------------------------------------------------

    def Enumerate(self, job: Job[p.Enumerate], *_: Any) -> RunUpdate:
        return RunUpdate(candidates=document_of(job.path).candidates)

    def MeasureNow(
        self, job: Job[p.MeasureNow], _: Ticket, send: Callable[[object], None]
    ) -> p.CandidatesAnswer:
        nodes = tuple(sorted(job.request.nodes))
        known = document_of(job.path)
        return p.CandidatesAnswer(
            candidates=tuple(
                msgspec.structs.replace(c, id=f"{c.instance.toolchain}:chosen", nodes=nodes, key="")
                for c in known.candidates
                if c.nodes == nodes[:1] and c.cost.usable
            )
        )

    def InsideQuery(self, job: Job[p.InsideQuery], *_: Any) -> InsideAnswer:
        return recorded_inside()

    def ExportArtifact(self, job: Job[p.ExportArtifact], *_: Any) -> p.Exported:
        Path(job.out or "").mkdir(parents=True)
        (Path(job.out or "") / "manifest.json").write_text("{}")
        return p.Exported(path=job.out)

    def ExportShapes(self, job: Job[p.ExportShapes], *_: Any) -> p.Exported:
        exported = self.ExportArtifact(job)
        others = "onnxruntime" if job.request.others else ""
        sharing = Sharing(bytes=50_000_000, apart_bytes=93_000_000, others=others)
        return msgspec.structs.replace(exported, sharing=sharing)


class PlayedEngine(engine.Engine):
    """The engine of the service, whose children play."""

    def request(self, request: p.Request[p.Answer], ticket: Ticket | None = None) -> p.Answer:
        method, _, seconds = OPTIONS.late.partition(":")
        if request.method == method:
            time.sleep(float(seconds))
        if isinstance(request, p.Hello) and OPTIONS.speaks:
            request = msgspec.structs.replace(request, version=OPTIONS.speaks)
        if isinstance(request, p.ToolchainsList):
            states = (*recorded("small").toolchains, MISSING)
            for number in range(1, len(states) + 1):
                self.tell("", Probing(number=number, total=len(states)))
            return states  # type: ignore[return-value]
        answer = super().request(request, ticket)
        if isinstance(answer, p.HelloAnswer) and OPTIONS.noise:
            print("a library wrote this", flush=True)
            os.write(1, b"this is no JSON\n")
        return answer


if __name__ == "__main__":
    engine.PipelineClient = RecordedChild  # type: ignore[misc, assignment]
    server.Engine = PlayedEngine  # type: ignore[misc]
    raise SystemExit(server.main())
