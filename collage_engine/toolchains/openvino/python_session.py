"""Runs a whole model in OpenVINO's own Python interface, as its users do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from collage_engine.records.errors import ToolchainError
from collage_engine.records.precision import BFLOAT16
from collage_engine.toolchains.capabilities import PythonSession
from collage_engine.toolchains.openvino.python_api import openvino


def open_session(
    file: str, threads: int, precision: str, inputs: Mapping[str, np.ndarray]
) -> PythonSession:
    """Return one request with its tensors set once, which is the fastest way from Python.

    Everything is left at the library's defaults but the number of threads and the precision: it
    would take the processor's lowest.

    Raises:
        ToolchainError: The model asks for an input that is not given.
    """
    request, count = open_request(file, threads, precision, inputs, {})

    def results() -> list[np.ndarray]:
        return [np.array(request.get_output_tensor(k).data) for k in range(count)]

    return PythonSession(request.infer, results)


def open_request(
    file: str,
    threads: int,
    precision: str,
    inputs: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
) -> tuple[Any, int]:
    """Return a request with its tensors, and the number of its outputs.

    Args:
        file: The model's file.
        threads: Threads of the request; 0: the library's default.
        precision: The precision of the instance.
        inputs: An array for each input, by name.
        settings: Further properties of the compiled model.
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
            **settings,
        },
    )
    request = compiled.create_infer_request()
    for number, array in given.items():
        request.set_input_tensor(number, api.Tensor(array))
    return request, len(compiled.outputs)
