"""Opens ONNX models for Waltz; this file stands by itself, since artifacts carry it."""

import onnx
from onnx.reference import ReferenceEvaluator


def open_model(model, threads, options):
    """Return a function from the inputs to the outputs of a serialised model."""
    evaluator = ReferenceEvaluator(onnx.load_from_string(model))

    def run(inputs):
        return evaluator.run(None, dict(zip(evaluator.input_names, inputs, strict=True)))

    return run
