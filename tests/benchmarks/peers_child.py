"""One runtime in a process of its own: loads a model as its users do, runs rounds when told."""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LOADER = ROOT / "collage_engine" / "machine" / "loader" / "run_artifact.py"
Call = Callable[[], Any]
Opened = tuple[Call, Callable[[], list[np.ndarray]], str]
"""The bound call, what it computed, and the runtime's version."""


def read_npz(path: str) -> dict[str, np.ndarray]:
    """The arrays of a file, by name."""
    with np.load(path) as archive:
        return dict(archive)


def open_artifact(spec: dict[str, Any], inputs: dict[str, np.ndarray]) -> Opened:
    """An exported artifact through the loader that artifacts ship, in its present version."""
    os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")
    found = importlib.util.spec_from_file_location("run_artifact", LOADER)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    model = module.load(spec["folder"])
    main, tensors = model.main, model.bind(inputs)
    return lambda: main(*tensors), lambda: model(inputs), spec.get("version", "")


def open_onnxruntime(spec: dict[str, Any], inputs: dict[str, np.ndarray]) -> Opened:
    """Its Python session as it ships (all optimisations), inputs and outputs bound once."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = spec["threads"]
    session = onnxruntime.InferenceSession(
        spec["model"], options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for wanted in session.get_inputs():
        value = onnxruntime.OrtValue.ortvalue_from_numpy(inputs[wanted.name])
        binding.bind_ortvalue_input(wanted.name, value)
    first = session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})
    outputs = [onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(y)) for y in first]
    for about, value in zip(session.get_outputs(), outputs, strict=True):
        binding.bind_ortvalue_output(about.name, value)
    run = session.run_with_iobinding
    return (
        lambda: run(binding),
        lambda: [value.numpy() for value in outputs],
        onnxruntime.__version__,
    )


def open_openvino(spec: dict[str, Any], inputs: dict[str, np.ndarray]) -> Opened:
    """A compiled model and one infer request, tensors set once; its own defaults else."""
    from collage_engine.toolchains.openvino.wheel import openvino as quiet

    openvino = quiet()
    core = openvino.Core()
    hint = {"float32": "f32", "bf16": "bf16"}[spec["precision"]]
    compiled = core.compile_model(
        spec["model"],
        "CPU",
        {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": spec["threads"]},
    )
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        name = next(n for n in inputs if n in port.get_names())
        request.set_tensor(port, openvino.Tensor(np.ascontiguousarray(inputs[name])))
    return (
        request.infer,
        lambda: [np.array(request.get_tensor(port).data) for port in compiled.outputs],
        openvino.__version__.split("-")[0],
    )


OPEN = {
    "artifact": open_artifact,
    "onnxruntime": open_onnxruntime,
    "openvino": open_openvino,
}


def worst_error(outputs: list[np.ndarray], truth: list[np.ndarray]) -> float:
    """max|y−r| / max|r|, the worst of all outputs; infinite where shapes differ."""
    worst = 0.0
    for y, r in zip(outputs, truth, strict=True):
        if y.shape != r.shape or not np.isfinite(y).all():
            return float("inf")
        scale = float(np.abs(r).max()) or 1.0
        worst = max(worst, float(np.abs(y.astype(np.float64) - r).max()) / scale)
    return worst


def run_round(call: Call, warm_s: float, seconds: float, least: int = 3) -> dict[str, list[float]]:
    """Seconds of single calls by both clocks; long calls are timed once a round."""
    wall, cpu = time.perf_counter, time.process_time
    begin = wall()
    end = begin + warm_s
    call()
    least = least if wall() - begin < 0.25 else 1
    while wall() < end:
        call()
    walls: list[float] = []
    cpus: list[float] = []
    end = wall() + seconds
    while len(walls) < least or (wall() < end and len(walls) < 2000):
        w, c = wall(), cpu()
        call()
        c, w = cpu() - c, wall() - w
        walls.append(w)
        cpus.append(c)
    return {"wall": walls, "cpu": cpus}


class Runtime:
    """Loads the runtime that its first request describes, then times calls of it."""

    call: Call | None = None

    def __call__(self, request: Any) -> Any:
        """Return version and error of what was loaded, then wall and CPU µs of a round's calls."""
        if self.call is not None:
            taken = run_round(self.call, *request)
            return tuple(statistics.median(taken[clock]) * 1e6 for clock in ("wall", "cpu"))
        inputs, truth = read_npz(request["inputs"]), read_npz(request["outputs"])
        self.call, outputs, version = OPEN[request["kind"]](request, inputs)
        self.call()
        return version, worst_error(outputs(), [truth[name] for name in request["output_names"]])
