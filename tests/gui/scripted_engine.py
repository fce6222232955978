"""An engine that speaks the protocol from canned data, and can misbehave on purpose.

``python scripted_engine.py [--model small|resnet|large] [--slow S] [--crash-after N]
[--late METHOD:S] [--flood N] [--speaks VERSION] [--noise] [--provisional]``.
``--once FILE`` lets a misbehaviour happen only if FILE does not exist yet, and creates it.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from canned import STATES, World

from collage_engine.records import protocol as p
from collage_engine.records.answers import (
    Alternative,
    Comparison,
    ExplainAnswer,
    InsideAnswer,
    NestedGraph,
    NestedNode,
    NoCandidate,
    NodeChange,
    SearchAnswer,
    WeightStatistics,
)
from collage_engine.records.event import Done, Log, Probing, Progress, Provisional, Stage
from collage_engine.records.graph import ModelRecord
from collage_engine.records.shapes import OpenSizes, Sharing
from collage_engine.records.toolchain import Device
from collage_engine.records.versions import SERVICE_PROTOCOL
from collage_engine.store.compare import shape_row
from collage_engine.wording.sentences import NOT_MEASURED

LOOP_BODY = NestedGraph(
    name="body",
    inputs=("turn", "go", "state"),
    outputs=("on", "next"),
    nodes=(
        NestedNode(
            type="If",
            name="choice",
            inputs=("go", ""),
            outputs=("next",),
            bodies=(
                NestedGraph(
                    name="then_branch",
                    outputs=("next",),
                    nodes=(NestedNode(type="com.microsoft.Inverse", outputs=("next",)),),
                ),
            ),
        ),
    ),
    left_out=2,
)
"""What is inside node 1."""


class Failure(Exception):
    pass


class Engine:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.worlds: dict[str, World] = {}
        self.models: dict[str, p.ModelAnswer] = {}
        self.cancel: dict[str, threading.Event] = {}
        self.keep: dict[str, bool] = {}
        self.measured = 0
        self.shapes: list[p.ShapeEntry] = []

    def write(self, message: dict) -> None:
        line = msgspec.json.encode(message) + b"\n"
        with self.lock:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def notify(self, method: str, params) -> None:
        self.write({"jsonrpc": "2.0", "method": method, "params": params})

    def event(self, document: str, event) -> None:
        name = type(event).__name__.lower()
        self.notify(name, p.Notification(document=document, event=msgspec.to_builtins(event)))

    def misbehaves(self) -> bool:
        mark = self.options.once
        if mark is None:
            return True
        if Path(mark).exists():
            return False
        Path(mark).write_text("done")
        return True

    def serve(self) -> None:
        for raw in sys.stdin.buffer:
            message = msgspec.json.decode(raw)
            threading.Thread(target=self.answer, args=(message,), daemon=True).start()

    def answer(self, message: dict) -> None:
        method, id_ = message["method"], message["id"]
        for late in self.options.late:
            name, _, seconds = late.partition(":")
            if name == method:
                time.sleep(float(seconds))
        try:
            params = msgspec.convert(message.get("params") or {}, p.METHODS[method])
            result = getattr(self, method.replace(".", "_"))(params)
        except Failure as failure:
            self.write(
                {
                    "jsonrpc": "2.0",
                    "id": id_,
                    "error": {
                        "code": -32000,
                        "message": str(failure),
                        "data": {"kind": "ModelError", "exit_status": 1},
                    },
                }
            )
            return
        self.write({"jsonrpc": "2.0", "id": id_, "result": result})

    def hello(self, params):
        if self.options.speaks != SERVICE_PROTOCOL:
            return {
                "version": self.options.speaks,
                "engine": "0.0",
                "host": "elsewhere",
                "device": Device(name="cpu", description="", threads=1),
            }
        if self.options.noise:
            sys.stdout.buffer.write(b"this is no JSON\n")
            sys.stdout.buffer.flush()
            print("a library wrote this to standard error", file=sys.stderr, flush=True)
        return p.HelloAnswer(
            version=SERVICE_PROTOCOL,
            engine="scripted",
            host="scripted-host",
            device=Device(
                name="cpu", description="Scripted CPU, 2 cores", threads=2, fingerprint="cafe01"
            ),
        )

    def toolchains_list(self, params):
        for number in range(1, len(STATES) + 1):
            self.event("", Probing(number=number, total=len(STATES)))
        return p.Toolchains(toolchains=STATES)

    def model_open(self, params):
        name = Path(params.path or params.name).name
        if params.path is not None and not Path(params.path).exists():
            raise Failure(f"{name}: no such file")
        if ("open" in name or "nameless" in name) and not params.shapes:
            raise Failure(f"{name} has inputs of unknown size ('x' is [batch, length])")
        if name.startswith("broken"):
            raise Failure(f"{name} is not an ONNX file (its first bytes are no protobuf)")
        kind = next((k for k in ("small", "large", "resnet") if k in name), self.options.model)
        document = f"d{len(self.worlds) + 1}"
        world = World(kind)
        self.worlds[document] = world
        self.models[document] = p.ModelAnswer(
            document=document,
            model=ModelRecord(
                path=params.path or params.name,
                sha256="00" * 32,
                nodes=len(world.calls),
                weights_bytes=102_000_000,
                onnx_nodes=len(world.calls) + 9,
            ),
        )
        return self.models[document]

    def model_dimensions(self, params):
        name = Path(params.path or params.name).name
        dimensions = {"batch": ("x",), "length": ("x", "y")} if "open" in name else {}
        return OpenSizes(dimensions=dimensions, inputs={"z": (1, 8)} if "nameless" in name else {})

    def shapes_open(self, params):
        name = params.model.path if params.model else self.models[params.document].model.path
        before = {each.choice.text: each for each in self.shapes}
        self.shapes = []
        for choice in params.choices:
            entry = before.get(choice.text)
            if entry is None:
                answer = self.model_open(p.ModelOpen(path=name, shapes={"x": (1,)}))
                entry = p.ShapeEntry(choice=choice, document=answer.document, model=answer.model)
            self.shapes.append(entry)
        return self.shapes_list(params)

    def shapes_list(self, params):
        entries = []
        for each in self.shapes:
            world = self.worlds[each.document]
            row = None
            if world.runs:
                row = shape_row(each.choice, world.graph, world.runs[-1])
            entries.append(msgspec.structs.replace(each, row=row))
        return p.ShapesAnswer(entries=tuple(entries))

    def export_shapes(self, params):
        Path(params.path).mkdir(parents=True)
        (Path(params.path) / "manifest.json").write_text("{}")
        sharing = Sharing(
            bytes=50_000_000,
            apart_bytes=93_000_000,
            padded=("batch",) if params.others else (),
        )
        return p.Exported(path=params.path, sharing=sharing)

    def session_open(self, params):
        saved = msgspec.json.decode(Path(params.path).read_bytes())
        answer = self.model_open(p.ModelOpen(path=None, name=saved["model"]))
        world = self.worlds[answer.document]
        world.pins = msgspec.convert(saved["pins"], tuple[p.Pin, ...])
        for settings in saved["runs"]:
            world.enumerate()
            world.finish_run(settings)
        return answer

    def session_save(self, params):
        world = self.worlds[params.document]
        name = self.models[params.document].model.path
        runs = [run.settings for run in world.runs]
        Path(params.path).write_bytes(
            msgspec.json.encode({"model": Path(name).name, "pins": world.pins, "runs": runs})
        )
        return p.Exported(path=params.path)

    def document_close(self, params):
        assert params.document in self.worlds

    def graph_get(self, params):
        world = self.worlds[params.document]
        return p.GraphAnswer(graph=world.graph, pins=world.pins)

    def pins_set(self, params):
        self.worlds[params.document].pins = params.pins
        return p.PinsAnswer(verdicts=self.worlds[params.document].verdicts(params.pins, False))

    def run_start(self, params):
        document = params.document
        self.cancel[document] = threading.Event()
        threading.Thread(target=self.run, args=(params,), daemon=True).start()
        return p.RunStarted(run=f"run-{len(self.worlds[document].runs) + 1}")

    def run(self, params) -> None:
        document, world = params.document, self.worlds[params.document]
        stop = self.cancel[document]
        self.event(document, Stage(stage="enumerate"))
        world.enumerate()
        self.event(document, Stage(stage="enumerate", done=True, seconds=0.1))
        if self.options.provisional:
            self.event(document, Stage(stage="whole-models"))
            self.event(document, Provisional(run=world.provisional_run()))
            self.event(document, Stage(stage="whole-models", done=True, seconds=0.1))
        self.event(document, Stage(stage="measure"))
        todo = [c for c in world.candidates.values() if c.id not in world.costs]
        started = time.monotonic()
        for at in range(self.options.flood):
            self.event(document, Log(text=f"flood {at}"))
        step = 20 if len(todo) > 1000 or not self.options.slow else 4
        for at in range(0, len(todo), step):
            if stop.is_set() and self.keep.get(document):
                break
            if stop.is_set():
                self.event(document, Done(state="cancelled"))
                return
            batch = {c.id: world.cost(c.id) for c in todo[at : at + step]}
            self.notify("measured", p.MeasuredMany(document=document, costs=batch))
            self.measured += len(batch)
            spent = time.monotonic() - started
            rate = (at + step) / spent if spent > 0.05 else None
            self.event(
                document,
                Progress(
                    stage="measure",
                    done=min(at + step, len(todo)),
                    total=len(todo),
                    rate=rate,
                    left_s=(len(todo) - at) / rate if rate else None,
                    now=f"{todo[at].label} on {todo[at].instance.toolchain}",
                    nodes=todo[at].nodes,
                ),
            )
            if 0 < self.options.crash_after <= self.measured and self.misbehaves():
                print("scripted: about to crash", file=sys.stderr, flush=True)
                os.abort()
            if self.options.slow:
                time.sleep(self.options.slow)
        self.event(document, Stage(stage="measure", done=True, seconds=1.0))
        self.event(document, Stage(stage="search"))
        placement, infeasible = world.place(world.pins)
        if placement is None:
            self.event(document, Done(state="failed", reason=infeasible["reason"]))
            return
        self.event(document, Stage(stage="search", done=True, seconds=0.1))
        self.event(document, Stage(stage="confirm"))
        if self.options.slow:
            time.sleep(self.options.slow * 3)
        world.ended = "stopped" if self.keep.pop(document, False) else "finished"
        run = world.finish_run(msgspec.to_builtins(params.settings), params.settings.name)
        self.event(document, Stage(stage="confirm", done=True, seconds=0.1))
        self.event(document, Done(state="finished", run=run.id))

    def run_cancel(self, params):
        self.keep[params.document] = params.keep
        if params.document in self.cancel:
            self.cancel[params.document].set()

    def run_search(self, params):
        world = self.worlds[params.document]
        if not world.costs:
            raise Failure("nothing is measured yet")
        placement, infeasible = world.place(world.pins)
        quick = world.runs and world.runs[-1].confirmation == "quick"
        if self.options.unmeasured and world.pins and not quick:
            waiting = {"reason": NOT_MEASURED, "pins": [0], "nodes": []}
            return SearchAnswer(placement=None, infeasible=waiting)
        return SearchAnswer(
            placement=placement,
            infeasible=infeasible,
            verdicts=world.verdicts(world.pins, True),
        )

    def candidates_query(self, params):
        world = self.worlds[params.document]
        wanted = set(params.nodes)
        found = [c for c in world.candidates.values() if not wanted or wanted & set(c.nodes)]
        return p.CandidatesAnswer(
            candidates=tuple(self.with_cost(world, c) for c in found),
            prices={c.id: world.price(c) for c in found if c.id in world.costs} if wanted else {},
        )

    def with_cost(self, world, candidate):
        cost = world.costs.get(candidate.id)
        return candidate if cost is None else msgspec.structs.replace(candidate, cost=cost)

    def explain(self, params):
        world = self.worlds[params.document]
        answer = self.candidates_query(
            p.CandidatesQuery(document=params.document, nodes=(params.node,))
        )
        placement, _ = world.place(world.pins)
        chosen = next((x for x in placement.partitions if params.node in x.nodes), None)
        op = world.calls[params.node].op
        refused = [t for t, ops in (("onednn", {"reshape", "mean", "nn.gelu"}),) if op in ops]
        words = (
            f"{chosen.toolchain} runs {len(chosen.nodes)} operators here as one partition.",
            "It wins because fusing the bias and the activation saves two passes over memory.",
        )
        prices = {name: one.us for name, one in answer.prices.items() if one.us is not None}
        lines = [
            Alternative(
                toolchain=each.instance.id,
                status="slower" if each.id in prices else "unmeasured",
                candidate=each.id,
                here_us=each.cost.median_us,
                whole_us=prices.get(each.id),
            )
            for each in answer.candidates
            if each.id != chosen.candidate
        ]
        without = [
            Alternative(
                toolchain="onednn", status="no candidate", reason=f"no pattern of onednn takes {op}"
            )
        ] * bool(refused)
        first = Alternative(
            toolchain=chosen.toolchain,
            status="chosen",
            candidate=chosen.candidate,
            here_us=chosen.estimated_us,
        )
        return ExplainAnswer(
            words=words,
            alternatives=(first, *lines, *without),
            candidates=answer.candidates,
            prices=answer.prices,
            chosen=chosen.candidate,
            runner_up=placement,
            not_offered=(
                *(
                    NoCandidate(toolchain=t, reason=f"no pattern of {t} takes {op}")
                    for t in refused
                ),
                NoCandidate(toolchain="openvino", reason="the package openvino is not installed"),
            ),
        )

    def measure_now(self, params):
        world = self.worlds[params.document]
        names = params.toolchains or ("tvm", "onnxruntime", "onednn")
        made = [c for t in names if (c := world.candidate(t, tuple(sorted(params.nodes))))]
        costs = {c.id: world.cost(c.id) for c in made}
        self.notify("measured", p.MeasuredMany(document=params.document, costs=costs))
        return p.CandidatesAnswer(candidates=tuple(self.with_cost(world, c) for c in made))

    def inside_get(self, params):
        weights = ()
        graphs = (LOOP_BODY,) if params.node == 1 else ()
        if params.node is not None:
            weights = (
                WeightStatistics(
                    name="conv1.weight",
                    shape=(64, 64, 3, 3),
                    dtype="float32",
                    minimum=-0.4,
                    maximum=0.5,
                    mean=0.001,
                    deviation=0.04,
                    zeros=0.01,
                    histogram=(1, 4, 22, 80, 130, 82, 20, 3, 1),
                    edges=tuple(-0.4 + 0.1 * i for i in range(10)),
                ),
            )
        if params.candidate is None:
            return InsideAnswer(weights=weights, graphs=graphs)
        candidate = self.worlds[params.document].candidates[params.candidate]
        steps = tuple(
            {
                "op": "convolution",
                "algorithm": "brgconv:avx512_core",
                "layout": "nChw16c",
                "post_ops": "relu",
            }
            for _ in candidate.nodes[:3]
        )
        return InsideAnswer(
            relax="@R.function\ndef main(x: R.Tensor((1, 64, 56, 56))):\n"
            "    return R.nn.conv2d(x, w)",
            tir="@T.prim_func\ndef conv2d(A, B, C):\n    for i in T.parallel(64):\n        ...",
            plan=steps,
            weights=weights,
            graphs=graphs,
        )

    def runs_list(self, params):
        return p.RunsAnswer(runs=tuple(self.worlds[params.document].runs))

    def runs_edit(self, params):
        world = self.worlds[params.document]
        for run in list(world.runs):
            if run.id == params.run:
                run.name = params.name if params.name is not None else run.name
                run.note = params.note if params.note is not None else run.note
                if params.delete:
                    world.runs.remove(run)
        return p.RunsAnswer(runs=tuple(world.runs))

    def runs_compare(self, params):
        world = self.worlds[params.document]
        by_id = {r.id: r for r in world.runs}
        a, b = by_id[params.a], by_id[params.b]
        before = {n: x for x in a.placement.partitions for n in x.nodes}
        after = {n: x for x in b.placement.partitions for n in x.nodes}
        nodes = []
        for n in sorted(before):
            one, two = before[n], after[n]
            change = (
                "moved"
                if one.toolchain != two.toolchain
                else "regrouped"
                if one.nodes != two.nodes
                else "same"
            )
            nodes.append(
                NodeChange(
                    node=n,
                    change=change,
                    before=one.toolchain,
                    after=two.toolchain,
                    delta_us=(two.estimated_us - one.estimated_us) / len(two.nodes),
                )
            )
        tools = {x.toolchain for r in (a, b) for x in r.placement.partitions}
        count = lambda r, t: sum(x.toolchain == t for x in r.placement.partitions)  # noqa: E731
        return Comparison(
            a=a.id,
            b=b.id,
            measured_us=(a.placement.measured_us, b.placement.measured_us),
            delta_us=b.placement.measured_us - a.placement.measured_us,
            nodes=tuple(nodes),
            partitions=((len(a.placement.partitions), len(b.placement.partitions)),),
            by_toolchain={t: (count(a, t), count(b, t)) for t in sorted(tools)},
        )

    def export_artifact(self, params):
        folder = Path(params.path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text("{}")
        return p.Exported(path=str(folder))

    def export_report(self, params):
        return p.Exported(content=b"<!doctype html><title>report</title>")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="small")
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--crash-after", type=int, default=0)
    parser.add_argument("--late", action="append", default=[])
    parser.add_argument("--flood", type=int, default=0)
    parser.add_argument("--speaks", type=int, default=SERVICE_PROTOCOL)
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--provisional", action="store_true")
    parser.add_argument("--unmeasured", action="store_true", help="pins wait for a quick run")
    parser.add_argument("--once")
    Engine(parser.parse_args()).serve()


if __name__ == "__main__":
    main()
