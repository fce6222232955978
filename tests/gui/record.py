"""Records the sessions that the desktop's tests are played from: ``python -m tests.gui.record``.

Two residual networks are placed with real toolchains; the figures are those of this machine.
"""

from __future__ import annotations

import lzma
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import msgspec
from onnx import ModelProto, save

from collage_engine.cli.main import main as collage
from collage_engine.records import protocol as p
from collage_engine.service.engine import Engine
from tests.support.recorded import DATA, INSIDE
from tests.zoo.net import Net

HOW = ("--threads", "1", "--toolchains", "tvm,onnxruntime,onednn")
STAGES = {"small": (1,), "resnet": (3, 6, 9, 3)}
"""Blocks in each stage, by the session's name."""


def residual_network(stages: tuple[int, ...]) -> ModelProto:
    """Bottleneck blocks as in ResNet-50, with few channels."""
    net = Net("residual network", opset=17)

    def conv(name: str, x: str, taken: int, given: int, kernel: int = 1) -> str:
        return net.conv(x, taken, given, kernel, name=f"{name}/Conv")

    def relu(name: str, x: str) -> str:
        return net.op("Relu", x, name=f"{name}/Relu")

    x = relu("/stem/conv1", conv("/stem/conv1", net.input("input", [1, 3, 32, 32]), 3, 16, 7))
    x = net.op("MaxPool", x, name="/stem/MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    wide = 16
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            at = f"/layer{stage + 1}/layer{stage + 1}.{block}"
            y = relu(at + "/conv1", conv(at + "/conv1", x, wide, 8 << stage))
            y = relu(at + "/conv2", conv(at + "/conv2", y, 8 << stage, 8 << stage, 3))
            y = conv(at + "/conv3", y, 8 << stage, 32 << stage)
            if block == 0:
                x = conv(at + "/downsample", x, wide, 32 << stage)
                wide = 32 << stage
            x = relu(at, net.op("Add", y, x, name=at + "/Add"))
    x = net.op("GlobalAveragePool", x, name="/avgpool/GlobalAveragePool")
    x = net.op("Reshape", x, net.const([1, wide], "int64"), name="/Flatten")
    net.output(net.op("MatMul", x, net.weight(wide, 10), name="/fc/Gemm"))
    return net.model()


def main() -> int:
    """Place the models, and measure what the runs left unmeasured of the small one."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, stages in STAGES.items():
            model, session = f"{scratch}/{name}.onnx", f"{scratch}/{name}.collage"
            save(residual_network(stages), model)
            command = f"place {model} -o {scratch}/{name} --session {session} --budget 3m"
            status = collage([*command.split(), *HOW])
            if status:
                return status
            if name == "small":
                ask_more(session)
            (DATA / f"{name}.collage.xz").write_bytes(lzma.compress(Path(session).read_bytes()))
    return 0


def ask_more(session: str) -> None:
    """Measure all groups of up to three operators, which takes minutes, and look inside of one."""
    with closing(Engine()) as engine:
        document = engine.request(p.SessionOpen(path=session)).document
        candidates = engine.request(p.CandidatesQuery(document=document)).candidates
        unknown = {c.nodes for c in candidates if c.cost.state == "unknown" and len(c.nodes) <= 3}
        for nodes in sorted(unknown):
            engine.request(p.MeasureNow(document=document, nodes=nodes))
        engine.request(p.SessionSave(document=document, path=session))
        (run,) = engine.request(p.RunsList(document=document))
        assert run.placement is not None
        first = run.placement.partitions[0].candidate
        looked = engine.request(p.InsideQuery(document=document, candidate=first, node=0))
    INSIDE.write_bytes(msgspec.json.format(msgspec.json.encode(looked)))


if __name__ == "__main__":
    sys.exit(main())
