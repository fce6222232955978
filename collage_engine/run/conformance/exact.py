"""The check of what must be exact: whole numbers at the ends of their types, and ties.

Each operator is a model of its own, whose true values NumPy computes. All that a toolchain takes
are compiled at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, parser, shape_inference

from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.extract import function_of
from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.records.graph import OperatorNumber, members
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.conformance.subject import Subject, demand
from collage_engine.support.errors import CollageError
from collage_engine.support.text import counted

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
OPSET = 18
"""Version of ONNX's operator set: the first one with operators on bits, whose reductions are all
given their axes as an input (ONNX's ``Changelog.md``)."""
Truth = Callable[..., Any]


def _quotient(x: np.ndarray, y: np.ndarray) -> Any:
    """Divide towards zero, as ONNX does and NumPy does not."""
    return (x - np.fmod(x, y)) // y


def _first(x: np.ndarray) -> np.ndarray:
    """Return 1 where the first of the largest values of a row is, and 0 elsewhere."""
    return np.asarray(np.arange(x.shape[1]) == x.argmax(1)[:, None], x.dtype)


def _order(x: np.ndarray) -> Any:
    """Return where the values of each row lie, the largest first, and equal ones as they lie."""
    # What is whole, and has no sign, cannot be negated.
    return x.shape[1] - 1 - np.argsort(x[:, ::-1], 1, kind="stable")[:, ::-1]


def _quantised(t: np.ndarray) -> Any:
    """Quantise with a scale of 1 and a zero point of 3, rounding halves to even."""
    return np.clip(np.rint(t) + 3, -128, 127).astype(np.int8)


WHOLE: dict[str, Truth] = {
    "Abs(x)": np.abs,
    "Add(x, y)": np.add,
    "ArgMax <axis = 1, keepdims = 0> (x)": lambda x: x.argmax(1),
    "BitwiseAnd(x, y)": np.bitwise_and,
    "BitwiseNot(x)": np.invert,
    "BitwiseXor(x, y)": np.bitwise_xor,
    "Cast <to = 1> (x)": lambda x: x.astype(np.float32),
    "Cast <to = 7> (x)": lambda x: x.astype(np.int64),
    "Cast <to = 9> (x)": lambda x: x.astype(bool),
    "Clip(x, low, high)": lambda x: np.clip(x, *_limits(x.dtype)),
    "Clip(x, low)": lambda x: np.maximum(x, _limits(x.dtype)[0]),
    "Concat <axis = 0> (x, y)": lambda x, y: np.concatenate([x, y]),
    "CumSum(x, last)": lambda x: x.cumsum(1, dtype=x.dtype),
    "Div(x, y)": _quotient,
    "Equal(x, y)": np.equal,
    "Gather <axis = 1> (x, axes)": lambda x: x[:, [1]],
    "Gemm(x, z)": lambda x, z: x @ z,
    "Greater(x, y)": np.greater,
    "LessOrEqual(x, y)": np.less_equal,
    "MatMul(x, z)": lambda x, z: x @ z,
    "Max(x, y)": np.maximum,
    "Min(x, y)": np.minimum,
    "Mod(x, y)": np.mod,
    "Mod <fmod = 1> (x, y)": np.fmod,
    "Mul(x, y)": np.multiply,
    "Neg(x)": np.negative,
    "Pow(x, y)": np.power,
    "Pow(x, two)": np.square,
    "ReduceMax <keepdims = 0> (x, axes)": lambda x: x.max(1),
    "ReduceMin <keepdims = 0> (x, axes)": lambda x: x.min(1),
    "ReduceProd <keepdims = 0> (x, axes)": lambda x: x.prod(1, dtype=x.dtype),
    "ReduceSum <keepdims = 0> (x, axes)": lambda x: x.sum(1, dtype=x.dtype),
    "Relu(x)": lambda x: np.maximum(x, 0),
    "Reshape(x, flat)": np.ravel,
    "Sign(x)": np.sign,
    "Sub(x, y)": np.subtract,
    "Transpose(x)": np.transpose,
    "Where(b, x, y)": lambda b, x, y: np.where(b, x, y),
}
"""Operators on whole numbers, and what they are; ``x`` and ``y`` are alike, ``z`` is transposed."""
WRAPPING = ("Add(x, y)", "Mul(x, y)", "Sub(x, y)")
"""Operators that are given all that a type holds, and whose results wrap around."""
ALIKE = ("Equal", "Greater", "LessOrEqual", "Max", "Min", "Where")
"""Operators whose ``y`` is ``x`` or one more, which float32 does not tell apart."""
CAST = "Cast <to = {code}> (f)"
"""A cast of floats, of which ``f`` holds some of every size that fits the type."""
TIES: dict[str, Truth] = {
    "ArgMax <axis = 1, keepdims = 0> (t)": lambda t: t.argmax(1),
    "ArgMin <axis = 1, keepdims = 0> (t)": lambda t: t.argmin(1),
    "Hardmax <axis = 1> (t)": _first,
    "QuantizeLinear(t, one, three)": _quantised,
    "Round(t)": np.rint,
    "TopK(t, few)": lambda t: _order(t)[:, :9],
}
"""Operators whose results depend on what becomes of equal values, and of halves; ``t`` has many."""
ROWS, COLUMNS = 6, 40
"""Sizes of the operands: more columns than registers hold values, which libraries scan one by one
else."""


def _limits(dtype: np.dtype) -> tuple[int, int]:
    """Return what values are clipped to: odd numbers a quarter of the way to the ends."""
    low, high = np.iinfo(dtype).min // 2, np.iinfo(dtype).max // 2
    return low + (low < 0), high - 2


@dataclass(frozen=True)
class ExactCase:
    """One operator in a model of several: its name, its operands, and its true values."""

    expression: str
    truth: Truth
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
    cast = {CAST.format(code=code): lambda f: f.astype(kind)}
    proposed = {**WHOLE, **cast, **(TIES if kind == "int8" else {})}
    cases = []
    for number, (expression, truth) in enumerate(proposed.items()):
        case = ExactCase(expression, truth, number)
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
        for instance in subject.instances():
            taken = [case for case in cases if not _refusals(subject, model, instance, case)]
            total += len(taken)
            wrong = _wrong(model, instance, taken, feeds)
            demand(not wrong, f"{kind}: {'; '.join(wrong)}")
    return f"{counted(total, 'operator')} exact on whole numbers and at ties"


def _calls(model: ImportedModel, case: ExactCase) -> tuple[OperatorNumber, ...]:
    """Return the operator numbers of a case."""
    graph = model.graph
    output = graph.record.outputs[graph.record.output_names.index(f"out{case.number}")]
    maker = graph.values[output].producer
    return () if maker is None else (*members(graph.upstream[maker]), maker)


def _refusals(
    subject: Subject, model: ImportedModel, instance: ToolchainInstance, case: ExactCase
) -> list[str]:
    """Return why the toolchain does not take a case."""
    graph = model.graph
    asked = (subject.toolchain.supports(graph, number, instance) for number in _calls(model, case))
    return [reason for reason in asked if reason is not None]


def _wrong(
    model: ImportedModel,
    instance: ToolchainInstance,
    cases: list[ExactCase],
    feeds: Mapping[str, np.ndarray],
) -> list[str]:
    """Return what is wrong with each case; where not all compile at once, they do one by one."""
    numbers = sorted({number for case in cases for number in _calls(model, case)})
    if not numbers:
        return []
    function = function_of(model, instance, numbers, "exact")
    given = [feeds[model.graph.values[index].name] for index in function.inputs]
    try:
        with compile_function(function) as compiled:
            outputs = [array.copy() for array in compiled.run(given)]
    except CollageError:
        if len(cases) == 1:
            return []  # it is refused, too
        return [said for case in cases for said in _wrong(model, instance, [case], feeds)]
    by_name = dict(zip(function.outputs, outputs, strict=True))
    said = []
    for case in cases:
        index = model.graph.record.output_names.index(f"out{case.number}")
        computed = by_name.get(model.graph.record.outputs[index])
        if computed is None:
            continue  # there is nothing to compute
        operands = [feeds[f"{name}{case.number}"] for name in case.operands]
        truth = case.truth(*operands).reshape(computed.shape)
        bad = computed != truth
        if bad.any():
            said.append(
                f"{case.expression} gives {computed[bad][0]} where {truth[bad][0]} is right "
                f"({bad.mean():.0%} of the values)"
            )
    return said
