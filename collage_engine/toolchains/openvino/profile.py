"""Reads OpenVINO's counters, as ``benchmark_app -pc`` and its report types write them."""

from __future__ import annotations

import csv
import io
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from collage_engine.records.placement import LEAST_RUNS, MOST_RUNS, Layer, Profile
from collage_engine.records.precision import BFLOAT16
from collage_engine.support.errors import ToolchainError
from collage_engine.support.time_limits import LEAST_S
from collage_engine.toolchains.openvino.wheel import openvino

SESSIONS = 3
"""Compiled models whose counters are taken, the fewest with a median: a counter is the mean of all
runs, so that one run which something else interrupts spoils it."""
INSERTED = ("Reorder", "Convert")
FRONTEND = "/WithoutBiases"
"""What its reader of ONNX adds to the names of convolutions and products with a bias."""
ENDS = ("Parameter", "Result", "Input", "Output")
NO_KERNEL = "undef"
REFERENCE = "ref"
"""How the names of kernels begin that are written to be right and not to be fast."""


def profile_layers(
    file: str, threads: int, precision: str, inputs: Mapping[str, np.ndarray]
) -> Profile:
    """Run a model as its users do, with OpenVINO's counters; only the precision is the run's."""
    rows: list[list[str]] = []
    all_took: list[float] = []
    for _ in range(SESSIONS):
        request = _open_request(file, threads, precision, inputs)
        for _ in range(LEAST_RUNS):  # caches and memory are then as in any later run
            request.infer()
        before = {layer.node_name: layer.real_time for layer in request.profiling_info}
        took: list[float] = []
        while len(took) < LEAST_RUNS or (len(took) < MOST_RUNS and sum(took) < LEAST_S / SESSIONS):
            began = time.perf_counter()
            request.infer()
            took.append(time.perf_counter() - began)
        # The counters are means since the model was compiled; the first runs are taken out again.
        runs = LEAST_RUNS + len(took)
        rows += [
            [
                layer.node_name,
                str(layer.status),
                layer.node_type,
                layer.exec_type,
                str(max(total.total_seconds(), 0.0) * 1e3 / len(took)),
            ]
            for layer in request.profiling_info
            for total in (layer.real_time * runs - before[layer.node_name] * LEAST_RUNS,)
        ]
        all_took += took
    return profile_of(rows, statistics.median(all_took) * 1e6)


def _open_request(file: str, threads: int, precision: str, inputs: Mapping[str, np.ndarray]) -> Any:
    """Return a request that counts, with its tensors set once; see ``profile_layers``.

    The precision is given since the library would take the processor's lowest.
    """
    api = openvino()
    core = api.Core()
    model = core.read_model(file)
    given = {}
    for number, port in enumerate(model.inputs):
        name = next((n for n in port.get_names() if n in inputs), None)
        if name is None:
            raise ToolchainError(f"openvino asks for an input {sorted(port.get_names())}")
        given[number] = np.ascontiguousarray(inputs[name])
    if model.is_dynamic():
        model.reshape({number: list(array.shape) for number, array in given.items()})
    compiled = core.compile_model(
        model,
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "bf16" if precision == BFLOAT16 else "f32",
            "PERF_COUNT": True,
        },
    )
    request = compiled.create_infer_request()
    for number, array in given.items():
        request.set_input_tensor(number, api.Tensor(array))
    return request


def read_json(data: Any) -> Profile | None:
    """Return the layers of a report in JSON; None: it is none."""
    if not isinstance(data, dict):
        return None
    runs = data.get("detailed_performance") or [data.get("avg_performance")]
    if not all(isinstance(run, dict) and "nodes" in run for run in runs):
        return None
    keys = ("name", "status", "node_type", "exec_type", "real_time")
    return profile_of([str(node[key]) for key in keys] for run in runs for node in run["nodes"])


def read_table(text: str) -> Profile | None:
    """Return the layers of a report in CSV, by semicolons or commas; None: it is none."""
    if not text.startswith(("layerName;execStatus", "layerName,execStatus")):
        return None
    rows = csv.reader(io.StringIO(text), delimiter=text[len("layerName")])
    return profile_of(row[:5] for row in rows if len(row) >= 5 and row[1] and row[0] != "layerName")


def profile_of(rows: Iterable[Sequence[Any]], us: float | None = None) -> Profile:
    """Return the layers of counters: name, status, type, kernel and milliseconds of each run."""
    times: dict[tuple[str, str, str], list[float]] = {}
    for name, status, kind, kernel, milliseconds in rows:
        # What takes less than a microsecond counts as not run; what was fused has no kernel.
        ran_quickly = not kernel.startswith(NO_KERNEL) and kind not in ENDS
        if status.rpartition(".")[2] == "EXECUTED" or ran_quickly:
            times.setdefault((name, kind, kernel), []).append(float(milliseconds) * 1e3)
    layers = [
        Layer(
            name=name,
            kind=kind,
            us=statistics.median(each),
            nodes=() if kind in INSERTED else (name.removesuffix(FRONTEND),),
            absorbs="after",
            kernel=kernel,
            fell_back=kernel if kernel.startswith(REFERENCE) else "",
        )
        for (name, kind, kernel), each in times.items()
    ]
    return Profile(toolchain="openvino", layers=tuple(layers), us=us)
