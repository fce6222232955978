"""A placement on the device with a partition on the host: exported, loaded and run there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from filelock import FileLock

from collage_engine.candidates.host_candidates import on_host
from collage_engine.lowering.build import build_cover, write_module
from collage_engine.lowering.virtual_machine import device_of
from collage_engine.machine.cuda import choose_target
from collage_engine.model.importer import import_onnx
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.timing.conversions import time_copies
from tests.support.covers import candidate_on
from tests.support.written import written

SHAPE = (1, 300)


def test_a_placement_with_a_partition_on_the_host_runs_from_its_export(
    tmp_path: Path, device_alone: FileLock
) -> None:
    import tvm
    from tvm.runtime.vm import VirtualMachine

    model = import_onnx(
        written(
            "(float[1,300] x) => (y) { a = Relu(x) b = Exp(a) c = Tanh(b) d = Sigmoid(c) "
            "y = Abs(d) }",
            {},
            opset=20,
        )
    )
    architecture = choose_target("cuda").architecture
    gpu = ToolchainInstance(toolchain="tvm", device="cuda:0", architecture=architecture)
    cpu = on_host(ToolchainInstance(toolchain="tvm"))
    cover = [candidate_on(cpu if n == 2 else gpu, (n,)) for n in range(5)]
    about = write_module(build_cover(model, cover), tmp_path / "module")
    assert "vm.builtin.collage_host.run.0" in [kernel.name for kernel in about.kernels]
    with device_alone:
        device = device_of("cuda:0")
        module = tvm.runtime.load_module(str(tmp_path / "module" / "model.so"))
        machine = VirtualMachine(module, device)
        for seed in range(3):  # the first call captures graphs, the others replay them
            x = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
            given = tvm.runtime.empty(SHAPE, "float32", device)
            given.copyfrom(x)
            result = machine["main"](given).numpy()
            truth = 1 / (1 + np.exp(-np.tanh(np.exp(np.maximum(x, 0)))))
            np.testing.assert_allclose(result, truth, atol=1e-5)


def test_copies_between_host_and_device_are_timed(device_alone: FileLock) -> None:
    with device_alone:
        found = time_copies()
    for way in ("to-host", "to-device"):
        assert found[f"copy:{way}:call"] > 0 and found[f"copy:{way}:byte"] > 0
