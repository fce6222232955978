"""The check that NaN comes out where the standard has it, or that the toolchain says it may not."""

from __future__ import annotations

import numpy as np

from collage_engine.model.importer import import_onnx
from collage_engine.run.conformance.models import model_of
from collage_engine.run.conformance.subject import NotApplicable, Subject, computed, demand
from collage_engine.support.text import counted

SHAPE = (1, 4, 4, 4)
ELEMENTWISE = (
    *("Relu (v)", "Sign (v)", "Elu (v)", "Selu (v)", "Celu (v)", "HardSigmoid (v)"),
    *("HardSwish (v)", "LeakyRelu (v)", "Clip (v, w5, w6)", "Max (v, o)", "Max (o, v)"),
    *("Min (v, o)", "Min (o, v)", "Max (v, w5)", "Min (v, w5)", "Exp (v)", "Erf (v)"),
    *("Softplus (v)", "Sigmoid (v)", "Tanh (v)", "Abs (v)", "Sqrt (v)"),
)
"""Operators whose elements are NaN where those of ``v`` are."""
OVER_ROWS = (
    *("Softmax <axis = 3> (v)", "LogSoftmax <axis = 3> (v)"),
    *("ReduceMax <axes = [3]> (v)", "ReduceMin <axes = [3]> (v)", "ReduceMean <axes = [3]> (v)"),
    *("GlobalMaxPool (v)", "MaxPool <kernel_shape = [1, 4]> (v)"),
)
"""Operators all of whose elements are NaN where each row of ``v`` holds one."""
SOURCES = {
    "alone": "v = Identity(x)",
    "behind a convolution": "v = Conv(x, w0, w1)",
    "behind a product": "p = MatMul(x, w2) v = Add(p, w3)",
}
"""What gives ``v``: libraries fuse operators with some of these."""


def nan_is_handed_on(subject: Subject) -> str:
    """An operator gives NaN where the standard does, or ``swallows_nan`` says that it may not."""
    subject.needs_to_run()
    random = np.random.default_rng(0)
    given = {name: random.standard_normal(SHAPE).astype(np.float32) for name in "xo"}
    given["x"][..., 1] = np.nan
    kept = declared = 0
    for operator in (*ELEMENTWISE, *OVER_ROWS):
        for where, source in SOURCES.items():
            model = import_onnx(model_of(_graph(operator, source)))
            graph = model.graph
            for instance in subject.instances():
                toolchain = subject.toolchain
                if any(toolchain.supports(graph, i, instance) for i in graph.operators):
                    continue
                if any(toolchain.swallows_nan(graph, i, instance) for i in graph.operators):
                    declared += 1
                    continue
                outputs = computed(model, instance, graph.operators, given)
                if outputs is None:
                    continue  # other checks are about what it refuses
                lost = ~np.isnan(*outputs.values())
                is_column = operator in ELEMENTWISE and where != "behind a product"
                demand(
                    not (lost[..., 1] if is_column else lost).any(),
                    f"{operator} {where} gives a number where the standard gives NaN: "
                    "swallows_nan() should say so",
                )
                kept += 1
    if not kept and not declared:
        raise NotApplicable("it takes none of the operators that libraries lose NaN in")
    return f"{counted(kept, 'operator')} hand NaN on, {declared} are declared not to"


def _graph(operator: str, source: str) -> str:
    """Return the graph of an operator behind what gives ``v``."""
    other = ", float[1,4,4,4] o" if "o" in operator.partition(" (")[2] else ""
    weights = "float[4,4,1,1] w0, float[4] w1, float[4,4] w2, float[4] w3, float w5, float w6"
    return f"(float[1,4,4,4] x{other}, {weights}) => (y) {{ {source} y = {operator} }}"
