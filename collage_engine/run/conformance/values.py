"""The checks of single values: whole numbers at the ends of their types, ties, and NaN.

ONNX's reference evaluator computes the true values. All operators that a toolchain takes are
compiled at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper, parser, shape_inference
from onnx.reference import ReferenceEvaluator

from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.records.graph import OperatorNumber, members
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.conformance.models import model_of
from collage_engine.run.conformance.subject import NotApplicable, Subject, computed, demand
from collage_engine.support.text import counted

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
OPSET = 18
"""Version of ONNX's operator set: the first one with operators on bits, whose reductions are all
given their axes as an input (ONNX's ``Changelog.md``)."""
WHOLE = (
    *("Abs(x)", "Neg(x)", "Sign(x)", "Add(x, y)", "Sub(x, y)", "Mul(x, y)", "Div(x, y)"),
    *("Mod(x, y)", "Mod <fmod = 1> (x, y)", "Pow(x, y)", "Pow(x, two)"),
    *("Gemm(x, z)", "MatMul(x, z)", "CumSum(x, last)"),
    *("Relu(x)", "Clip(x, low, high)", "Clip(x, low)", "Max(x, y)", "Min(x, y)"),
    *("Equal(x, y)", "Greater(x, y)", "LessOrEqual(x, y)", "Where(b, x, y)"),
    *("BitwiseAnd(x, y)", "BitwiseNot(x)", "BitwiseXor(x, y)"),
    *("Cast <to = 1> (x)", "Cast <to = 7> (x)", "Cast <to = 9> (x)"),
    *("ArgMax <axis = 1, keepdims = 0> (x)", "ReduceMax <keepdims = 0> (x, axes)"),
    *("ReduceMin <keepdims = 0> (x, axes)", "ReduceProd <keepdims = 0> (x, axes)"),
    *("ReduceSum <keepdims = 0> (x, axes)", "Concat <axis = 0> (x, y)"),
    *("Gather <axis = 1> (x, axes)", "Reshape(x, flat)", "Transpose(x)"),
)
"""Operators on whole numbers; ``x`` and ``y`` are alike, ``z`` is transposed."""
WRAPPING = ("Add(x, y)", "Mul(x, y)", "Sub(x, y)")
"""Operators that are given all that a type holds, and whose results wrap around."""
ALIKE = ("Equal", "Greater", "LessOrEqual", "Max", "Min", "Where")
"""Operators whose ``y`` is ``x`` or one more, which float32 does not tell apart."""
CAST = "Cast <to = {code}> (f)"
"""A cast of floats, of which ``f`` holds some of every size that fits the type."""
TIES = (
    *("ArgMax <axis = 1, keepdims = 0> (t)", "ArgMin <axis = 1, keepdims = 0> (t)"),
    *("Hardmax <axis = 1> (t)", "QuantizeLinear(t, one, three)", "Round(t)", "TopK(t, few)"),
)
"""Operators whose results depend on what becomes of equal values, and of halves; ``t`` has many."""
ROWS, COLUMNS = 6, 40
"""Sizes of the operands: more columns than registers hold values, which libraries scan one by one
else."""
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


def _limits(dtype: np.dtype) -> tuple[int, int]:
    """Return what values are clipped to: odd numbers a quarter of the way to the ends."""
    low, high = np.iinfo(dtype).min // 2, np.iinfo(dtype).max // 2
    return low + (low < 0), high - 2


@dataclass(frozen=True)
class ExactCase:
    """One operator in a model of several: what it computes, and its number there."""

    expression: str
    number: int

    @property
    def operands(self) -> list[str]:
        """Return the names of what it is computed from, as the expression has them."""
        names = self.expression[self.expression.rindex("(") + 1 : -1].split(", ")
        return [name for name in names if name in "bfxyzt"]

    @property
    def line(self) -> str:
        """Return it as ONNX's text, with names that no other case has."""
        named = re.sub(r"\b([bfxyzt])\b(?=[^<>]*$)", rf"\g<1>{self.number}", self.expression)
        first = f"values{self.number}, " if "TopK" in named else ""
        return f"{first}out{self.number} = {named}"


def _model(cases: list[ExactCase], kind: str) -> onnx.ModelProto:
    """Return a model with all cases on a type of whole numbers."""
    shape = f"{ROWS}, {COLUMNS}"
    types = {
        **dict.fromkeys("xy", f"{kind}[{shape}]"),
        **dict.fromkeys("ft", f"float[{shape}]"),
        "z": f"{kind}[{COLUMNS}, {ROWS}]",
        "b": f"bool[{shape}]",
    }
    inputs = (f"{types[name]} {name}{case.number}" for case in cases for name in case.operands)
    low, high = _limits(np.dtype(kind))
    text = f"""<ir_version: 8, opset_import: ["" : {OPSET}]>
    exact ({", ".join(inputs)}) => ({", ".join(f"out{case.number}" for case in cases)})
    <{kind} two = {{2}}, {kind} low = {{{low}}}, {kind} high = {{{high}}},
     int64 last = {{1}}, int64[1] axes = {{1}}, int64[1] flat = {{-1}}, int64[1] few = {{9}},
     float one = {{1}}, int8 three = {{3}}>
    {{ {" ".join(case.line for case in cases)} }}"""
    return shape_inference.infer_shapes(parser.parse_model(text), strict_mode=True)


def _cases(kind: str) -> list[ExactCase]:
    """Return the cases that ONNX has for a type."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    cast = CAST.format(code=code)
    cases = []
    for number, expression in enumerate((*WHOLE, cast, *(TIES if kind == "int8" else ()))):
        case = ExactCase(expression, number)
        try:
            onnx.checker.check_model(_model([case], kind), full_check=True)
        except (onnx.checker.ValidationError, shape_inference.InferenceError):
            continue  # ONNX has it for other types
        cases.append(case)
    return cases


def _feeds(model: ImportedModel, cases: list[ExactCase], kind: str) -> dict[str, np.ndarray]:
    """Return inputs at the ends of the type; except in ``WRAPPING`` nothing overflows."""
    random, info = np.random.default_rng(0), np.iinfo(kind)
    feeds = model.random_inputs(0)
    halves = random.integers(-5, 6, (ROWS, COLUMNS)).astype(np.float32) / 2
    sizes = random.choice([-1, 1], halves.shape) * 2.0 ** random.integers(
        0, info.bits, halves.shape
    )
    floats = sizes + halves * (np.abs(sizes) < 2**20)
    floats = np.clip(floats, float(info.min), info.max / 2).astype(np.float32)
    for case in cases:
        x, y = f"x{case.number}", f"y{case.number}"
        if case.expression.startswith(ALIKE):
            feeds[y] = feeds[x] + (random.random(halves.shape) < 0.5) * (feeds[x] < info.max)
            feeds[y] = feeds[y].astype(kind)
        if case.expression in WRAPPING:
            feeds |= {
                name: random.integers(info.min, info.max, halves.shape, kind, endpoint=True)
                for name in (x, y)
            }
        if case.expression.startswith("ArgMax") and "x" in case.operands:
            feeds[x][0] = info.min  # nothing exceeds what a search may begin with
        if case.expression.startswith("ReduceSum"):
            low, high = (limit // COLUMNS for limit in (info.min, info.max))
            feeds[x] = random.integers(low + 1, high, halves.shape, kind)
        for name, values in (("t", halves), ("f", floats)):
            if name in case.operands:
                feeds[f"{name}{case.number}"] = values
    return feeds


def exact_values_are_exact(subject: Subject) -> str:
    """Whole numbers are right at the ends of their types, and equal values and halves as in ONNX.

    What a toolchain cannot compute so ``supports`` refuses, or compiling does.
    """
    subject.needs_to_run()
    total = 0
    for kind in TYPES:
        cases = _cases(kind)
        model = import_onnx(_model(cases, kind))
        feeds = _feeds(model, cases, kind)
        truth = _truth(cases, kind, feeds)
        for instance in subject.instances():
            refused = {
                n
                for n in model.graph.operators
                if subject.toolchain.supports(model.graph, n, instance)
            }
            taken = [case for case in cases if refused.isdisjoint(_calls(model, case))]
            total += len(taken)
            wrong = _wrong(model, instance, taken, feeds, truth)
            demand(not wrong, f"{kind}: {'; '.join(wrong)}")
    return f"{counted(total, 'operator')} exact on whole numbers and at ties"


def _truth(
    cases: list[ExactCase], kind: str, feeds: Mapping[str, np.ndarray]
) -> dict[int, np.ndarray]:
    """Return the true values by number of the case."""
    # The evaluator multiplies what Gemm takes by a float.
    exact = [replace(c, expression=c.expression.replace("Gemm", "MatMul")) for c in cases]
    outputs = ReferenceEvaluator(_model(exact, kind)).run(None, dict(feeds))
    return {case.number: output for case, output in zip(cases, outputs, strict=True)}


def _calls(model: ImportedModel, case: ExactCase) -> tuple[OperatorNumber, ...]:
    """Return the operator numbers of a case."""
    graph = model.graph
    output = graph.record.outputs[graph.record.output_names.index(f"out{case.number}")]
    maker = graph.values[output].producer
    return () if maker is None else (*members(graph.upstream[maker]), maker)


def _wrong(
    model: ImportedModel,
    instance: ToolchainInstance,
    cases: list[ExactCase],
    feeds: Mapping[str, np.ndarray],
    truths: Mapping[int, np.ndarray],
) -> list[str]:
    """Return what is wrong with each case; where not all compile at once, they do one by one."""
    numbers = sorted({number for case in cases for number in _calls(model, case)})
    if not numbers:
        return []
    outputs = computed(model, instance, numbers, feeds)
    if outputs is None:
        if len(cases) == 1:
            return []  # it is refused, too
        return [said for case in cases for said in _wrong(model, instance, [case], feeds, truths)]
    said = []
    for case in cases:
        index = model.graph.record.output_names.index(f"out{case.number}")
        values = outputs.get(model.graph.record.outputs[index])
        if values is None:
            continue  # there is nothing to compute
        truth = truths[case.number].reshape(values.shape)
        bad = values != truth
        if bad.any():
            said.append(
                f"{case.expression} gives {values[bad][0]} where {truth[bad][0]} is right "
                f"({bad.mean():.0%} of the values)"
            )
    return said


def nan_is_handed_on(subject: Subject) -> str:
    """An operator gives NaN where the standard does, or ``swallows_nan`` says that it may not."""
    subject.needs_to_run()
    random = np.random.default_rng(0)
    given = {name: random.standard_normal(SHAPE).astype(np.float32) for name in "xo"}
    given["x"][..., 1] = np.nan
    kept = declared = 0
    for operator in (*ELEMENTWISE, *OVER_ROWS):
        for where, source in SOURCES.items():
            model = import_onnx(model_of(_nan_graph(operator, source)))
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


def _nan_graph(operator: str, source: str) -> str:
    """Return the graph of an operator behind what gives ``v``."""
    other = ", float[1,4,4,4] o" if "o" in operator.partition(" (")[2] else ""
    weights = "float[4,4,1,1] w0, float[4] w1, float[4,4] w2, float[4] w3, float w5, float w6"
    return f"(float[1,4,4,4] x{other}, {weights}) => (y) {{ {source} y = {operator} }}"
