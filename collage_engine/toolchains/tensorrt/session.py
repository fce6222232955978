"""Builds TensorRT's engines and runs them, through its Python interface.

This file lies in an artifact as ``tensorrt_session.py`` and needs TensorRT only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import tensorrt as trt


class _Log(trt.ILogger):  # type: ignore[misc]
    """Keeps the last error, and prints nothing."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.error = "TensorRT gives no reason"

    def log(self, severity: Any, message: str) -> None:
        if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
            self.error = message.strip().partition("\n")[0]


_LOG = _Log()


def _made(what: Any) -> Any:
    """Return what TensorRT made.

    Raises:
        RuntimeError: It made nothing, for the reason in the message.
    """
    if what is None or what is False:
        raise RuntimeError(f"TensorRT: {_LOG.error}")
    return what


@lru_cache(maxsize=1)  # a candidate is measured in several copies, and building takes seconds
def build_engine(model: bytes, tf32: bool) -> bytes:
    """Return the engine of an ONNX model; inputs, then outputs are called tensor0, tensor1, ….

    Args:
        model: The model, with its weights.
        tf32: Whether products of float32 may be rounded to tf32.

    Raises:
        RuntimeError: TensorRT builds no engine, for the reason in the message.
    """
    builder = _made(trt.Builder(_LOG))
    # From TensorRT 11 on networks compute in the types of the model without being told so.
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    parser = trt.OnnxParser(network, _LOG)
    if not parser.parse(model):
        raise RuntimeError(f"TensorRT's parser: {parser.get_error(0).desc()}")
    tensors = [network.get_input(n) for n in range(network.num_inputs)]
    tensors += [network.get_output(n) for n in range(network.num_outputs)]
    for number, tensor in enumerate(tensors):
        tensor.name = f"tensor{number}"
    config = builder.create_builder_config()
    (config.set_flag if tf32 else config.clear_flag)(trt.BuilderFlag.TF32)
    return bytes(_made(builder.build_serialized_network(network, config)))


def open_model(
    engine: bytes, threads: int, options: Mapping[str, str]
) -> Callable[[int, Sequence[int]], None]:
    """Return a function of a stream and the addresses of inputs and outputs on the device."""
    opened = _made(trt.Runtime(_LOG).deserialize_cuda_engine(engine))
    context = _made(opened.create_execution_context())

    def run(stream: int, addresses: Sequence[int]) -> None:
        for number, address in enumerate(addresses):
            _made(context.set_tensor_address(f"tensor{number}", address))
        _made(context.execute_async_v3(stream))

    return run
