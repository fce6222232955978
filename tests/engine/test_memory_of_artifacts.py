"""Weights are held once: in the file, and in the memory of the process that runs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collage_engine.lowering.build import build_cover, write_module
from collage_engine.lowering.built import MODULE_FILE
from collage_engine.model.importer import import_onnx
from collage_engine.toolchains.registry import get, probe
from collage_engine.trials.trial_job import MemoryWatch
from tests.support.command import python
from tests.support.covers import candidate_on
from tests.support.toolchain_cases import default_instance
from tests.zoo.net import Net

WIDTH, LAYERS = 1536, 6
TOOLCHAINS = ("tvm", "onnxruntime", "onednn", "openvino", "openblas")
CODE_BYTES = 1 << 20
"""Generated code, plans and symbols of these small models, at most."""

LOAD = """
import sys
import numpy, tvm.runtime
from tvm.runtime.vm import VirtualMachine
def private():
    found = next(l for l in open("/proc/self/status") if "RssAnon" in l)
    return int(found.split()[1]) * 1024
before = private()
library = tvm.runtime.load_module(sys.argv[1])
vm = VirtualMachine(library, tvm.cpu())
x = tvm.runtime.empty((8, int(sys.argv[2])), "float32")
for _ in range(3):
    vm["main"](x)
print(private() - before)
"""


def dense_chain(layers: int = LAYERS, width: int = WIDTH):
    """Dense layers, 57 MB of weights at the default size."""
    net = Net("dense_chain", seed=40)
    x = net.input("x", [8, width])
    for _ in range(layers):
        x = net.op("Relu", net.dense(x, width, width))
    net.output(x)
    return net.model()


@pytest.fixture(scope="module")
def model():
    return import_onnx(dense_chain())


def instance(name: str):
    state = probe(name)
    if not state.available:
        pytest.skip(f"{name}: {state.reason}")
    return default_instance(get(name), 1)


def cut(model, tools):
    """The operators in as many equal pieces as there are toolchains.

    A BLAS takes the products of its piece with their biases, and TVM what is left of it.
    """
    count = len(model.graph.operators)
    cuts = [count * k // len(tools) for k in range(len(tools) + 1)]
    cover = []
    for k, tool in enumerate(tools):
        piece = list(range(cuts[k], cuts[k + 1]))
        while piece and tool.toolchain == "openblas":
            is_product = len(piece) > 1 and model.graph.nodes[piece[0]].op == "matmul"
            taken, piece = (piece[:2], piece[2:]) if is_product else (piece[:1], piece[1:])
            runs = tool if is_product else default_instance(get("tvm"), tool.threads)
            cover.append(candidate_on(runs, tuple(taken)))
        if piece:
            cover.append(candidate_on(tool, tuple(piece)))
    return cover


@pytest.mark.parametrize("name", TOOLCHAINS)
def test_a_toolchain_holds_the_weights_once(name, model, tmp_path):
    built = write_module(build_cover(model, cut(model, [instance(name)])), tmp_path, link=True)
    weights = model.record.weights_bytes
    assert sum(built.part_weights) == weights and built.repeated_bytes == 0
    size = (tmp_path / MODULE_FILE).stat().st_size
    assert weights * 0.99 < size < weights + CODE_BYTES
    done = python(
        LOAD,
        tmp_path / MODULE_FILE,
        WIDTH,
        env={**os.environ, **built.environment, "TVM_USE_RUNTIME_LIB": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1.3 * weights + (24 << 20), "the weights are in memory twice"


def test_a_mixed_artifact_stores_every_weight_once(model, tmp_path):
    tools = [instance(name) for name in ("onnxruntime", "tvm", "onednn")]
    built = write_module(build_cover(model, cut(model, tools)), tmp_path, link=True)
    weights = model.record.weights_bytes
    assert sum(built.part_weights) == weights and built.repeated_bytes == 0
    assert (tmp_path / MODULE_FILE).stat().st_size < weights + CODE_BYTES


def test_a_weight_that_two_partitions_read_is_counted(tmp_path):
    """Tied weights on two toolchains: stored twice, and said so."""
    net = Net("tied", seed=41)
    x, tied = net.input("x", [8, 256]), net.weight(256, 256, fan_in=256, gain=1.0)
    x = net.op("Relu", net.op("MatMul", x, tied))
    net.output(net.op("MatMul", x, tied))
    model = import_onnx(net.model())
    last = len(model.graph.operators) - 1
    cover = [
        candidate_on(instance("onednn"), tuple(range(last))),
        candidate_on(instance("onnxruntime"), (last,)),
    ]
    built = write_module(build_cover(model, cover), tmp_path, link=True)
    assert built.repeated_bytes == 256 * 256 * 4
    assert sum(built.part_weights) == model.record.weights_bytes + built.repeated_bytes


def test_what_is_linked_is_no_copy(model, tmp_path):
    built = write_module(build_cover(model, cut(model, [instance("onednn")])), tmp_path, link=True)
    assert all((tmp_path / library.name).is_symlink() for library in built.libraries)
    assert Path(built.libraries[0].file).is_file()


def test_loading_and_running_have_peaks_of_their_own():
    watch = MemoryWatch()
    block = bytearray(96 << 20)
    block[::4096] = b"x" * len(block[::4096])
    del block
    watch.loaded()
    seen = watch.seen()
    assert seen.load_peak_bytes >= seen.base_bytes + (90 << 20)
    assert seen.peak_bytes == max(seen.load_peak_bytes, seen.run_peak_bytes)
    assert seen.run_peak_bytes < seen.load_peak_bytes - (60 << 20)
