"""Opens ONNX Runtime's own Python interface, by which it is the engine's oracle."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage_engine.model.values import for_onnx, from_onnx
from collage_engine.support.errors import ToolchainError

PROVIDERS = ["CPUExecutionProvider"]
QUIET = 4
"""``log_severity_level`` at which only fatal errors are written to standard error."""


def package() -> Any:
    """Return the package, without its telemetry; ToolchainError where it is not installed."""
    # It would write the names of models and graphs to a queue in the user's cache. The variable
    # is read when the library is loaded, and keeps it from making the queue; the function is what
    # other versions have.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
    except ImportError as error:
        raise ToolchainError(
            f"the package onnxruntime is not installed ({error}); pip install onnxruntime"
        ) from error
    onnxruntime.disable_telemetry_events()
    return onnxruntime


class Evaluator:
    """An ONNX model in a session of its own (``capabilities.OnnxSession``)."""

    def __init__(
        self,
        model: bytes | str,
        threads: int,
        optimise: bool,
        weights: Mapping[str, np.ndarray],
    ) -> None:
        onnxruntime = package()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = QUIET
        if threads:
            options.intra_op_num_threads = threads
        if not optimise:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if weights:
            # Views of the arrays, which have to live while the session is opened.
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(a) for a in weights.values()]
            options.add_external_initializers(list(weights), values)
        self._session = onnxruntime.InferenceSession(model, options, providers=PROVIDERS)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of all inputs that need a value, then of those that have one already."""
        needed, others = self._session.get_inputs(), self._session.get_overridable_initializers()
        return tuple(i.name for i in (*needed, *others))

    def run(
        self, outputs: Sequence[str] | None, feeds: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Return the values of these outputs; None: of all, in the file's order."""
        return from_onnx(self._session.run(outputs, for_onnx(feeds, self.inputs)))
