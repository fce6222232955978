"""Opens ONNX models. Artifacts carry this file: it imports the library, NumPy and Python's own."""

import onnx
from onnx.reference import ReferenceEvaluator


def open_model(model, threads, options):
    """Return a function over arrays.

    Args:
        model: The bytes of an ONNX model; its inputs have fixed shapes.
        threads: How many threads the library may use.
        options: The configuration of the toolchain's instance, by name.

    Returns:
        A function from the inputs, a list of NumPy arrays that it must not write to, to the
        outputs in the model's order.
    """
    evaluator = ReferenceEvaluator(onnx.load_from_string(model))

    def run(inputs):
        return evaluator.run(None, dict(zip(evaluator.input_names, inputs, strict=True)))

    return run
