"""Canned models, candidates and placements for the scripted engine and the widget tests."""

from __future__ import annotations

import hashlib

import msgspec

from collage_engine.records.answers import Price
from collage_engine.records.candidate import CandidateRecord, Cost, invalid
from collage_engine.records.graph import GraphRecord, Node, TensorType
from collage_engine.records.pin import Pin, PinVerdict
from collage_engine.records.placement import (
    Baseline,
    BaselineKind,
    CandidateCounts,
    Partition,
    Placement,
    Residual,
    Run,
)
from collage_engine.records.toolchain import ToolchainInstance, ToolchainState
from collage_engine.toolchains.registry import about, described
from collage_engine.wording.titles import learn
from tests.support.runs import run_record

_PROBED = (
    ToolchainState(
        name="tvm", available=True, version="0.27.0", devices=("cpu",), licence="Apache-2.0"
    ),
    ToolchainState(
        name="onnxruntime", available=True, version="1.31.1", devices=("cpu",), licence="MIT"
    ),
    ToolchainState(
        name="onednn", available=True, version="3.2", devices=("cpu",), licence="Apache-2.0"
    ),
    ToolchainState(
        name="openvino",
        available=False,
        reason="the package openvino is not installed",
        install="pip install openvino",
        devices=(),
    ),
)
STATES = tuple(described(state, about(state.name)) for state in _PROBED)
"""With the titles and looks of the real toolchains."""
learn(STATES)
AVAILABLE = ("tvm", "onnxruntime", "onednn")
WORK = {
    "nn.conv2d": 620.0,
    "matmul": 300.0,
    "nn.max_pool2d": 90.0,
    "add": 22.0,
    "nn.relu": 18.0,
    "nn.softmax": 40.0,
    "mean": 30.0,
    "reshape": 2.0,
    "nn.layer_norm": 35.0,
    "nn.gelu": 50.0,
}
REFUSES = {"onednn": {"reshape", "mean", "nn.gelu"}}

RESIDUAL = (
    Residual(name="layout NCHW to NCHW16c", calls=3, us=310.0),
    Residual(name="vm.copy", calls=1, us=0.5),
    Residual(name="vm.alloc", calls=2, us=None),
)
"""Kernels outside every partition, of runs with the seed 17."""


class Builder:
    """Adds nodes in post-DFS order and remembers which operators belong together."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.fused: list[list[int]] = []
        self.calls = 0
        self.inputs: tuple[int, ...] = (0,)

    def leaf(self, form: str, name: str, shape: tuple[int, ...]) -> int:
        self.nodes.append(
            Node(index=len(self.nodes), form=form, name=name, types=(TensorType(shape, "float32"),))
        )
        return len(self.nodes) - 1

    def call(self, op, name, inputs, shape, kind="anchor", fuse=False, **attributes) -> int:
        self.nodes.append(
            Node(
                index=len(self.nodes),
                form="call",
                op=op,
                name=name,
                inputs=tuple(inputs),
                types=(TensorType(tuple(shape), "float32"),),
                kind=kind,
                onnx_nodes=(name,),
                onnx_value=name + "_out",
                attributes=attributes,
            )
        )
        if fuse and self.fused:
            self.fused[-1].append(self.calls)
        else:
            self.fused.append([self.calls])
        self.calls += 1
        return len(self.nodes) - 1

    def record(self, output: int) -> GraphRecord:
        return GraphRecord(
            nodes=tuple(self.nodes),
            inputs=self.inputs,
            outputs=(output,),
            input_names=tuple(self.nodes[i].name for i in self.inputs),
            output_names=("output",),
        )


def residual_network(stages: tuple[int, ...] = (3, 4, 6, 3)) -> Builder:
    """Bottleneck blocks as in ResNet-50 (``(3, 4, 6, 3)``)."""
    b = Builder()
    x = b.leaf("parameter", "input", (1, 3, 224, 224))

    def conv(name, x, shape, kernel, relu=True):
        w = b.leaf("constant", name + ".weight", (shape[1], 64, kernel, kernel))
        bias = b.leaf("constant", name + ".bias", (shape[1], 1, 1))
        y = b.call(
            "nn.conv2d",
            name + "/Conv",
            (x, w),
            shape,
            "anchor",
            strides=[1, 1],
            padding=[kernel // 2] * 4,
            data_layout="NCHW",
        )
        y = b.call("add", name + "/bias", (y, bias), shape, "broadcast", fuse=True)
        return (
            b.call("nn.relu", name + "/Relu", (y,), shape, "elementwise", fuse=True) if relu else y
        )

    x = conv("/stem/conv1", x, (1, 64, 112, 112), 7)
    x = b.call("nn.max_pool2d", "/stem/MaxPool", (x,), (1, 64, 56, 56), "anchor", pool_size=[3, 3])
    for stage, blocks in enumerate(stages):
        side, wide = 56 >> stage, 64 << stage
        for block in range(blocks):
            at = f"/layer{stage + 1}/layer{stage + 1}.{block}"
            y = conv(at + "/conv1", x, (1, wide, side, side), 1)
            y = conv(at + "/conv2", y, (1, wide, side, side), 3)
            y = conv(at + "/conv3", y, (1, wide * 4, side, side), 1, relu=False)
            if block == 0:
                x = conv(at + "/downsample", x, (1, wide * 4, side, side), 1, relu=False)
            x = b.call(
                "add", at + "/Add", (y, x), (1, wide * 4, side, side), "broadcast", fuse=True
            )
            x = b.call(
                "nn.relu", at + "/Relu", (x,), (1, wide * 4, side, side), "elementwise", fuse=True
            )
    x = b.call("mean", "/avgpool/GlobalAveragePool", (x,), (1, 2048, 1, 1), "reduction")
    x = b.call("reshape", "/Flatten", (x,), (1, 2048), "injective")
    w = b.leaf("constant", "fc.weight", (2048, 1000))
    x = b.call("matmul", "/fc/Gemm", (x, w), (1, 1000), "anchor")
    return b


def encoder(layers: int, heads: int = 4) -> Builder:
    """Transformer blocks with one mask that feeds them all; ``layers=200`` is 10,000 nodes."""
    b = Builder()
    x = b.leaf("parameter", "tokens", (1, 128, 256))
    m = b.leaf("parameter", "attention_mask", (1, 1, 128, 128))
    mask = b.call("add", "/mask/Add", (m,), (1, 1, 128, 128), "broadcast")
    shape = (1, 128, 256)
    for layer in range(layers):
        at = f"/encoder/layer.{layer}"
        n = b.call("nn.layer_norm", at + "/norm1/LayerNorm", (x,), shape, "reduction")
        outs = []
        for head in range(heads):
            here = f"{at}/attention/head.{head}"
            parts = []
            for name in "qkv":
                w = b.leaf("constant", f"{here}.{name}.weight", (256, 64))
                y = b.call("matmul", f"{here}/{name}/MatMul", (n, w), (1, 128, 64))
                parts.append(
                    b.call("add", f"{here}/{name}/Add", (y,), (1, 128, 64), "broadcast", fuse=True)
                )
            s = b.call("matmul", f"{here}/scores/MatMul", (parts[0], parts[1]), (1, 128, 128))
            s = b.call(
                "add", f"{here}/scores/Mask", (s, mask), (1, 128, 128), "broadcast", fuse=True
            )
            s = b.call("nn.softmax", f"{here}/Softmax", (s,), (1, 128, 128), "opaque")
            outs.append(b.call("matmul", f"{here}/context/MatMul", (s, parts[2]), (1, 128, 64)))
        y = b.call("reshape", at + "/merge/Reshape", tuple(outs), shape, "injective")
        y = b.call("matmul", at + "/proj/MatMul", (y,), shape)
        x = b.call("add", at + "/Add1", (y, x), shape, "broadcast", fuse=True)
        y = b.call("nn.layer_norm", at + "/norm2/LayerNorm", (x,), shape, "reduction")
        y = b.call("matmul", at + "/mlp/up/MatMul", (y,), (1, 128, 1024))
        y = b.call("nn.gelu", at + "/mlp/Gelu", (y,), (1, 128, 1024), "elementwise", fuse=True)
        y = b.call("matmul", at + "/mlp/down/MatMul", (y,), shape)
        x = b.call("add", at + "/Add2", (y, x), shape, "broadcast", fuse=True)
    b.inputs = (0, 1)
    return b


def model(name: str) -> tuple[GraphRecord, list[list[int]]]:
    """``small`` (17 operators), ``resnet`` (~175) or ``large`` (10,000)."""
    if name == "large":
        b = encoder(217, heads=4)
    elif name == "small":
        b = residual_network((1,))
    else:
        b = residual_network()
    return b.record(len(b.nodes) - 1), b.fused


def _noise(text: str) -> float:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 0xFFFFFFFF


class World:
    """The engine's knowledge of one document, small enough to compute in the blink of an eye."""

    def __init__(self, name: str) -> None:
        self.graph, self.fused = model(name)
        self.calls = [n for n in self.graph.nodes if n.form == "call"]
        self.candidates: dict[str, CandidateRecord] = {}
        self.costs: dict[str, Cost] = {}
        self.runs: list[Run] = []
        self.pins: tuple[Pin, ...] = ()
        self.enumerated = False
        self.ended = "finished"

    def enumerate(self) -> None:
        if self.enumerated:
            return
        self.enumerated = True
        sets = {tuple(g) for g in self.fused} | {(i,) for i in range(len(self.calls))}
        for nodes in sorted(sets):
            for toolchain in AVAILABLE:
                self.candidate(toolchain, nodes)

    def candidate(self, toolchain: str, nodes: tuple[int, ...]) -> CandidateRecord | None:
        ops = [self.calls[n].op for n in nodes]
        if any(op in REFUSES.get(toolchain, ()) for op in ops):
            return None
        digest = hashlib.sha256(str(nodes).encode()).hexdigest()[:10]
        id_ = f"{toolchain}:{digest}"
        label = "+".join(op.rsplit(".", 1)[-1] for op in ops)
        self.candidates[id_] = CandidateRecord(
            id=id_,
            instance=ToolchainInstance(toolchain=toolchain),
            nodes=nodes,
            label=label[:60],
            rule=f"{toolchain}.combine" if len(nodes) > 1 else f"{toolchain}.op",
            key=digest,
        )
        return self.candidates[id_]

    def cost(self, id_: str) -> Cost:
        if id_ in self.costs:
            return self.costs[id_]
        candidate = self.candidates[id_]
        noise = _noise(id_)
        if noise > 0.985:
            found = invalid("max|y−r| / max|r| is 3.1e-2, above the tolerance of 1e-4")
        else:
            work = sum(WORK.get(self.calls[n].op, 10.0) for n in candidate.nodes)
            saved = 0.72 if len(candidate.nodes) > 1 else 1.0
            base = work * saved * (0.7 + 0.7 * noise)
            found = Cost(
                state="measured",
                median_us=base,
                low_us=base * 0.97,
                high_us=base * 1.06,
                count=24,
                max_rel_error=2e-6,
                measured_at="2026-11-21T09:00:00Z",
            )
        self.costs[id_] = found
        return found

    def value(self, candidate: CandidateRecord) -> float:
        return self.cost(candidate.id).us

    def place(self, pins: tuple[Pin, ...]) -> tuple[Placement | None, dict | None]:
        """Best toolchain per fused group, under the pins: simple, but honest about them."""
        self.enumerate()
        by_nodes: dict[tuple[int, ...], list[CandidateRecord]] = {}
        for c in self.candidates.values():
            by_nodes.setdefault(c.nodes, []).append(c)
        exact = [tuple(sorted(p.nodes)) for p in pins if p.kind in ("exactly", "together")]
        blocks: list[tuple[int, ...]] = []
        taken = {n for e in exact for n in e}
        for group in self.fused:
            rest = tuple(n for n in group if n not in taken)
            if rest and len(rest) == len(group):
                blocks.append(rest)
            else:
                blocks.extend((n,) for n in rest)
        blocks.extend(exact)
        for e in exact:
            if e not in by_nodes:
                by_nodes[e] = [c for t in AVAILABLE if (c := self.candidate(t, e))]

        def allowed(c: CandidateRecord) -> bool:
            for pin in pins:
                touched = set(pin.nodes) & set(c.nodes)
                if touched and pin.kind == "on" and c.instance.toolchain != pin.toolchain:
                    return False
                if touched and pin.kind == "never" and c.instance.toolchain == pin.toolchain:
                    return False
                if (
                    touched
                    and pin.kind == "exactly"
                    and pin.toolchain not in (None, c.instance.toolchain)
                ):
                    return False
            return True

        chosen: list[CandidateRecord] = []
        for block in sorted(blocks):
            options = [c for c in by_nodes.get(block, []) if allowed(c)]
            usable = [c for c in options if self.cost(c.id).usable]
            if usable:
                chosen.append(min(usable, key=self.value))
                continue
            for n in block:
                single = [
                    c for c in by_nodes.get((n,), []) if allowed(c) and self.cost(c.id).usable
                ]
                if not single or block in exact:
                    name = self.calls[n].name
                    return None, {
                        "nodes": [n],
                        "pins": list(range(len(pins))),
                        "reason": f"no toolchain can take {name} under the pins",
                    }
                chosen.append(min(single, key=self.value))
        chosen.sort(key=lambda c: c.nodes)
        parts = tuple(
            Partition(
                id=f"p{at}",
                candidate=c.id,
                toolchain=c.instance.toolchain,
                config={},
                nodes=c.nodes,
                onnx_nodes=tuple(self.calls[n].name for n in c.nodes),
                estimated_us=self.value(c),
            )
            for at, c in enumerate(chosen)
        )
        return Placement(
            partitions=parts, estimated_us=sum(p.estimated_us for p in parts) + 2.0 * len(parts)
        ), None

    def verdicts(self, pins: tuple[Pin, ...], searched: bool) -> tuple[PinVerdict, ...]:
        if not searched:
            return tuple(PinVerdict(pin=_pin_text(p), state="pending") for p in pins)
        out = []
        free, _ = self.place(())
        for at, pin in enumerate(pins):
            alone, why = self.place((pin,))
            if alone is None:
                out.append(
                    PinVerdict(
                        pin=_pin_text(pin),
                        state="infeasible",
                        reason=why["reason"],
                        contradicts=(at,),
                    )
                )
            else:
                out.append(
                    PinVerdict(
                        pin=_pin_text(pin),
                        state="honoured",
                        price_us=alone.estimated_us - free.estimated_us,
                    )
                )
        return tuple(out)

    def price(self, candidate: CandidateRecord) -> Price:
        value = self.value(candidate)
        if value == float("inf"):
            return Price(None)
        best = min(
            (self.value(c) for c in self.candidates.values() if c.nodes == candidate.nodes),
            default=value,
        )
        return Price(value - best + (0.0 if len(candidate.nodes) > 1 else 11.0))

    def provisional_run(self) -> Run:
        """One toolchain alone, timed end to end before anything else is measured.

        After the first run it is slower than what the run before has found.
        """
        known = self.runs[-1].placement if self.runs else None
        took = 5000.0 if known is None else 2 * (known.measured_us or 0.0)
        nodes = tuple(range(len(self.calls)))
        part = Partition(
            id="p0",
            candidate="tvm:whole",
            toolchain="tvm",
            config={},
            nodes=nodes,
            onnx_nodes=(),
            estimated_us=None,
        )
        return run_record(
            id=f"run-{len(self.runs) + 1}",
            threads=2,
            toolchains=list(STATES),
            placement=Placement(partitions=(part,), estimated_us=None, measured_us=took),
            baselines=[Baseline(name="tvm", kind="whole-model", measured_us=took)],
            winner="tvm",
            provisional=True,
        )

    def _alone(self, baseline: Baseline) -> Baseline:
        """A whole model on one toolchain, an operator in each partition."""
        known = self.candidates.values()
        own = (c for c in known if c.instance.toolchain == baseline.name and len(c.nodes) == 1)
        return msgspec.structs.replace(baseline, candidates=tuple(c.id for c in own))

    def finish_run(self, settings: dict, name: str = "") -> Run:
        placement, _ = self.place(self.pins)
        number = len(self.runs) + 1
        if placement is not None:
            parts = tuple(
                msgspec.structs.replace(
                    p,
                    in_place_us=(p.estimated_us or 0) * (0.9 + 0.35 * _noise(p.id + str(number))),
                )
                for p in placement.partitions
            )
            measured = placement.estimated_us * 1.03
            placement = msgspec.structs.replace(
                placement,
                partitions=parts,
                measured_us=measured,
                spread_us=(measured * 0.985, measured * 1.02),
                additive_error_us=measured - placement.estimated_us,
            )
        best = placement.measured_us if placement else 0.0
        run = run_record(
            id=f"run-{number}",
            name=name or f"Run {number}",
            threads=2,
            toolchains=list(STATES),
            candidates=CandidateCounts(
                enumerated=len(self.candidates),
                distinct=len(self.candidates) // 2,
                measured=len(self.costs),
                from_store=12,
                invalid=sum(c.state == "invalid" for c in self.costs.values()),
            ),
            placement=placement,
            baselines=[
                self._alone(_slower(best, "onnxruntime", "whole-model", 1.06, 1.08, 1.11)),
                self._alone(_slower(best, "tvm", "whole-model", 1.7, 1.72, 1.75)),
                _slower(best, "fuseops", "fuseops", 1.52, 1.55, 1.6),
                _slower(best, "greedy onednn", "greedy", 1.19, 1.21, 1.24),
                Baseline(name="onednn", kind="whole-model", reason="oneDNN does not take reshape"),
            ],
            pins=list(self.verdicts(self.pins, True)),
            max_abs_error=1e-6,
            max_rel_error=2e-6,
            seconds={
                "enumerate": 0.4,
                "measure": 31.0,
                "search": 0.05,
                "build": 4.0,
                "confirm": 9.0,
            },
            started_at="2026-11-21T09:12:00Z",
            settings=settings,
            device="CPU, 2 cores",
            lower_bound_us=best * 0.9,
            ended=self.ended,
            confirmation=settings.get("confirmation", "full"),
            residual=list(RESIDUAL) if settings.get("seed") == 17 else [],
            warnings=["the machine was busy: spread of repeats 12 %"]
            if settings.get("seed") == 13
            else [],
        )
        self.runs.append(run)
        return run


def _slower(
    best_us: float, name: str, kind: BaselineKind, low: float, times: float, high: float
) -> Baseline:
    """A baseline that takes so many times as long as the best placement."""
    spread_us = (best_us * low, best_us * high)
    return Baseline(name=name, kind=kind, measured_us=best_us * times, spread_us=spread_us)


def _pin_text(pin: Pin) -> str:
    what = {
        "on": pin.toolchain,
        "never": f"!{pin.toolchain}",
        "exactly": "exactly",
        "together": "together",
    }
    return pin.text or f"{len(pin.nodes)} nodes = {what.get(pin.kind, '@' + str(pin.device))}"
