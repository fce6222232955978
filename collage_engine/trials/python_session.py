"""A whole model as a toolchain's own users run it: from Python, on the user's own file.

What a baseline is timed with where a toolchain has a Python interface of its own. Everything is
left at the library's defaults, except the thread count and, for OpenVINO, the precision: it would
take the processor's lowest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from collage_engine.records.errors import ToolchainError
from collage_engine.records.precision import BFLOAT16
from collage_engine.records.toolchain import ToolchainInstance

Session = tuple[Callable[[], Any], Callable[[], list[np.ndarray]]]
"""A call of the model on the bound inputs, and the outputs of the last call, in file order."""


def has_session(instance: ToolchainInstance) -> bool:
    """Whether users would run this instance by the toolchain's own Python interface."""
    if instance.toolchain == "openvino":
        return True
    return instance.toolchain in SESSIONS and not instance.config


def open_session(
    toolchain: str, file: str, threads: int, precision: str, inputs: Mapping[str, np.ndarray]
) -> Session:
    """Open the file and bind the inputs, by name; ``ToolchainError`` where there is none."""
    opener = SESSIONS.get(toolchain)
    if opener is None:
        raise ToolchainError(f"{toolchain} has no Python interface of its own")
    return opener(file, threads, precision, inputs)


def _onnxruntime(
    file: str, threads: int, precision: str, inputs: Mapping[str, np.ndarray]
) -> Session:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    wanted = [i.name for i in session.get_inputs()]
    feeds = {name: inputs[name] for name in wanted if name in inputs}
    found: list[Any] = []

    def call() -> None:
        found[:] = session.run(None, feeds)

    return call, lambda: [np.asarray(value) for value in found]


def _openvino(file: str, threads: int, precision: str, inputs: Mapping[str, np.ndarray]) -> Session:
    """One request with its tensors set once, which is the fastest way from Python."""
    from collage_engine.toolchains.openvino.python_api import openvino

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
        },
    )
    request = compiled.create_infer_request()
    for number, array in given.items():
        request.set_input_tensor(number, api.Tensor(array))

    def results() -> list[np.ndarray]:
        return [np.array(request.get_output_tensor(k).data) for k in range(len(compiled.outputs))]

    return request.infer, results


SESSIONS: dict[str, Callable[[str, int, str, Mapping[str, np.ndarray]], Session]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
