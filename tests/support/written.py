"""Models written as ONNX's text (``onnx.parser``), for tests that are about single nodes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model


def written(
    text: str,
    weights: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 18,
    more: str = "",
) -> onnx.ModelProto:
    """Return the model that a graph's signature and nodes, and functions behind it, describe.

    Args:
        text: ``(float[2,3] x) => (y) { y = Relu(x) }``.
        weights: Initializers by name.
        opset: Version of the standard's operators.
        more: Other domains, as ``"my.own": 1``.
    """
    imports = ", ".join(filter(None, (f'"": {opset}', more)))
    model = parse_model(f"<ir_version: 10, opset_import: [{imports}]> m {text}")
    for name, array in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model
