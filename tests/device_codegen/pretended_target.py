"""What the tests on a pretended device run in a process that sees it; prints a line of JSON."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.covers import candidate_on


def mixed(folder: Path) -> dict[str, Any]:
    """Five operators, the third on the host: built, exported, loaded and run on three inputs."""
    import tvm
    from onnx import TensorProto, helper
    from tvm.runtime.vm import VirtualMachine

    from collage_engine.build.build import build_cover, write_module
    from collage_engine.candidates.host_candidates import on_host
    from collage_engine.lowering.target import device_of
    from collage_engine.model.importer import import_onnx
    from collage_engine.records.toolchain import ToolchainInstance

    names = ("Relu", "Exp", "Tanh", "Sigmoid", "Abs")
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"]) for i, op in enumerate(names)]
    shape = (1, 300)
    graph = helper.make_graph(
        nodes,
        "mixed",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("v5", TensorProto.FLOAT, shape)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    made.ir_version = 8
    model = import_onnx(made)
    gpu = ToolchainInstance(toolchain="tvm", device="cuda:0", architecture="sm_90a")
    cpu = on_host(ToolchainInstance(toolchain="tvm"))
    cover = [candidate_on(cpu if n == 2 else gpu, (n,)) for n in range(5)]
    about = write_module(build_cover(model, cover), folder / "module")
    device = device_of("cuda:0")
    machine = VirtualMachine(tvm.runtime.load_module(str(folder / "module" / "model.so")), device)
    runtime = ctypes.CDLL("libcudart.so.13")
    errors, allocated = [], []
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        tensor = tvm.runtime.empty(shape, "float32", device)
        tensor.copyfrom(x)
        before = runtime.pretended_allocations()
        result = machine["main"](tensor).numpy()
        allocated.append(runtime.pretended_allocations() - before)
        truth = 1 / (1 + np.exp(-np.tanh(np.exp(np.maximum(x, 0)))))
        errors.append(float(np.abs(result - truth).max()))
    return {
        "errors": errors,
        "graphs": runtime.pretended_graphs(),
        "allocated": allocated,
        "kernels": [k.name for k in about.kernels],
        "architecture": about.architecture,
        "libraries": [library.name for library in about.libraries],
    }


def timed(folder: Path) -> dict[str, Any]:
    """A candidate compiled, checked and timed as the measuring does, and copies timed."""
    from collage_engine.lowering.compile import compile_function
    from collage_engine.lowering.extract import function_of
    from collage_engine.model.importer import import_onnx
    from collage_engine.records.toolchain import ToolchainInstance
    from collage_engine.transitions.chain_bench import chain_model
    from collage_engine.transitions.copies import CopiesRequest, run_job

    model = import_onnx(chain_model(2, (1, 300)))
    gpu = ToolchainInstance(toolchain="tvm", device="cuda:0", architecture="sm_90a")
    x = np.random.default_rng(0).standard_normal((1, 300)).astype(np.float32)
    with compile_function(function_of(model, gpu, (0, 1), "candidate")) as compiled:
        (result,) = compiled.run([x])
        seconds = compiled.timer([x])(10)
        inside = compiled.inside()
    return {
        "right": bool((result == np.maximum(x, 0)).all()),
        "seconds": seconds,
        "cuda_graph": inside["cuda_graph"],
        "copies": run_job(CopiesRequest(rounds=9)),
    }


if __name__ == "__main__":
    work = {"mixed": mixed, "timed": timed}[sys.argv[1]]
    print("\n" + json.dumps(work(Path(sys.argv[2]))))
