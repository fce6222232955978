"""Running ONNX models and Relax modules in tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx


def run_onnx(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """With ONNX Runtime on the processor, one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = {i.name for i in session.get_inputs()}
    return session.run(None, {k: v for k, v in inputs.items() if k in wanted})


def run_relax(module: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Built for this machine without schedules: slow code, right numbers."""
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(relax.build(module, "llvm"), tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(a) for a in inputs])
    results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [r.numpy() for r in results]


def relative_error(given: np.ndarray, wanted: np.ndarray) -> float:
    """max|y − r| / max|r|; absolute where the truth is all zeros."""
    a, b = given.astype(np.float64), wanted.astype(np.float64)
    if not a.size:
        return 0.0
    apart, size = float(np.abs(a - b).max()), float(np.abs(b).max())
    return apart / size if size else apart
