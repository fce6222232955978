"""Opens TensorRT engines for a module that has no C++ interface to TensorRT.

This file lies in an artifact as ``collage_tensorrt.py`` and is run before ``model.so`` is loaded;
it needs tvm_ffi and the TensorRT package that the manifest names, nothing of Collage Explorer.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

NAME = "collage.tensorrt.open"
_runtimes: dict[str, tuple[Any, Any, Any]] = {}


def _address(handle: Any) -> int:
    """Return an opaque pointer of tvm_ffi as a number; a null one comes as None."""
    if handle is None:
        return 0
    value = getattr(handle, "value", handle)
    return int(value) if value is not None else 0


def _runtime(module: str) -> tuple[Any, Any, Any]:
    """Return the package, its logger and its runtime; they are made once for a process."""
    if module not in _runtimes:
        try:
            trt = importlib.import_module(module)
        except ImportError as error:
            raise RuntimeError(f"this module needs the Python package {module}: {error}") from error

        class Log(trt.ILogger):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)
                self.last = ""

            def log(self, severity: Any, message: str) -> None:
                if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                    self.last = message

        log = Log()
        _runtimes[module] = trt, log, trt.Runtime(log)
    return _runtimes[module]


def open_engine(plan_text: Any, data: Any) -> Callable[..., None]:
    """Return a function of (stream, addresses of inputs and outputs) that enqueues the engine."""
    plan = json.loads(str(plan_text))
    _, log, runtime = _runtime(plan["library"])
    engine = runtime.deserialize_cuda_engine(bytes(data))
    if engine is None:
        raise RuntimeError(f"TensorRT does not open the engine: {log.last}")
    context = engine.create_execution_context()
    if context is None:
        raise RuntimeError(f"TensorRT makes no context: {log.last}")
    names = [f"input{i}" for i in range(len(plan["inputs"]))]
    names += [f"output{i}" for i in range(len(plan["outputs"]))]
    bound = [-1] * len(names)

    def enqueue(stream: Any, *pointers: Any, _engine: Any = engine) -> None:
        for number, pointer in enumerate(pointers):
            address = _address(pointer)
            if address != bound[number]:
                if not context.set_tensor_address(names[number], address):
                    raise RuntimeError(f"TensorRT takes no memory for {names[number]}: {log.last}")
                bound[number] = address
        if not context.execute_async_v3(_address(stream)):
            raise RuntimeError(f"TensorRT: {log.last}")

    return enqueue


def register() -> None:
    """Make it known to the runtime modules of this process."""
    import tvm_ffi

    tvm_ffi.register_global_func(NAME, open_engine, override=True)


register()
