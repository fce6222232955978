"""Opens ONNX models with MNN; this file stands by itself, since artifacts carry it."""

import tempfile
from pathlib import Path

# The converter by itself: importing MNN.tools installs packages for a log of its users.
import _tools
import numpy as np
from MNN import expr, nn


def open_model(model, threads, options):
    """Return a function from the inputs to the outputs of a serialised model."""
    with tempfile.TemporaryDirectory() as folder:
        onnx, converted = Path(folder, "m.onnx"), Path(folder, "m.mnn")
        onnx.write_bytes(model)
        arguments = ["-f", "ONNX", "--modelFile", onnx, "--MNNModel", converted, "--bizCode", "x"]
        _tools.mnnconvert(["mnnconvert", *map(str, arguments)])
        if not converted.exists():
            raise ValueError("MNN converts no such model")
        settings = {"backend": "CPU", "numThread": threads, "precision": "high"}
        runtime = nn.create_runtime_manager((settings,))
        module = nn.load_module_from_file(str(converted), [], [], runtime_manager=runtime)

    def run(inputs):
        given = [expr.const(x, list(x.shape), expr.NCHW, expr.float) for x in inputs]
        found = module.forward(given)
        return [np.array(expr.convert(value, expr.NCHW).read()) for value in found]

    return run
