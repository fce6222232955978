"""Places the node tests of the ONNX standard, each with the checks of a run."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from tvm import relax, runtime

from collage_engine.lowering.accuracy import tolerance
from collage_engine.lowering.build import build_cover
from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import TrueValues
from collage_engine.lowering.reference import run_onnx as evaluate
from collage_engine.lowering.tensors import from_numpy, to_numpy
from collage_engine.machine.loader.run_artifact import error_of
from collage_engine.machine.worker import Worker, WorkerError
from collage_engine.model.importer import import_onnx
from collage_engine.model.values import encoded, from_onnx
from collage_engine.support.errors import CollageError, ToolchainError
from collage_engine.timing.bench import check
from collage_engine.toolchains import registry
from tests.support.covers import candidate_on
from tests.support.toolchain_cases import default_instance

TOOLCHAINS = ("tvm", "onednn", "openblas", "openvino", "onnxruntime")
"""In the order in which an operator is given to them where they pass; ONNX Runtime, which takes
the most, last."""
LONGEST_S = 600.0
"""Seconds that a test may take before it is taken for hanging; chosen: the slowest takes 10 on a
processor of its own, which a busy machine shares among a dozen programs."""
Parts = list[tuple[str, tuple[int, ...]]]
"""Toolchain and operators of each partition of a placement."""


@dataclass(frozen=True)
class Outcome:
    """What became of a node test.

    ``state`` is ``right``, ``refused`` (with a sentence), ``wrong`` (a number that the checks let
    through) or ``failed``; ``skipped`` where ONNX Runtime itself does not pass.
    """

    name: str
    state: str
    said: str = ""


def node_tests() -> dict[str, Any]:
    """Returns all node tests of the installed package, by name and in its order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


class Placer:
    """Runs in a child process: opens a test's model, checks every toolchain on it, and compares."""

    def __init__(self) -> None:
        self.cases = node_tests()

    def __call__(self, name: str) -> Outcome:
        case = self.cases[name]
        try:
            given, made = case.data_sets[0]
            values = zip(case.model.graph.input, given, strict=False)
            inputs = {value.name: value_of(each) for value, each in values}
            wanted = [value_of(each) for each in made]
        except Exception as error:  # the package holds what its own readers cannot read
            return Outcome(name, "skipped", str(error))
        if not passes_onnx_runtime(case, inputs, wanted):
            return Outcome(name, "skipped")
        try:
            return Outcome(name, "right" if _is_right(case, inputs, wanted) else "wrong")
        except CollageError as error:
            return Outcome(name, "refused", str(error))
        except Exception as error:
            return Outcome(name, "failed", f"{type(error).__name__}: {error}"[:500])


def results(names: Sequence[str]) -> Iterator[Outcome]:
    """Place tests in a child process; one that ends or hangs it costs that test."""
    with Worker(f"{__name__}:Placer") as worker:
        for name in names:
            try:
                yield worker.call(name, LONGEST_S)
            except WorkerError as error:
                yield Outcome(name, "failed", str(error))


def value_of(given: Any) -> Any:
    """Returns the value of an input or an output: an array, a list of them, or None."""
    if isinstance(given, onnx.TensorProto):
        return numpy_helper.to_array(given)
    if isinstance(given, onnx.SequenceProto):
        return numpy_helper.to_list(given)
    if isinstance(given, onnx.OptionalProto):
        return numpy_helper.to_optional(given)
    return given


def agree(found: Any, wanted: Any, case: Any) -> bool:
    """Whether a value is the expected one, within the test's own tolerance."""
    if isinstance(wanted, list):
        same_length = isinstance(found, list) and len(found) == len(wanted)
        return same_length and all(agree(a, b, case) for a, b in zip(found, wanted, strict=True))
    if wanted is None or found is None:
        return found is wanted
    a, b = np.asarray(found), np.asarray(wanted)
    if a.shape != b.shape:
        return False
    if b.dtype.kind in "OUS":
        return bool((_as_str(a) == _as_str(b)).all())
    if b.dtype.kind == "c":
        return bool(np.allclose(a, b, rtol=case.rtol, atol=case.atol, equal_nan=True))
    wide = a.astype(np.longdouble), b.astype(np.longdouble)
    return bool(np.allclose(*wide, rtol=case.rtol, atol=case.atol, equal_nan=True))


def _as_str(array: np.ndarray) -> np.ndarray:
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array.astype(str)


def passes_onnx_runtime(case: Any, inputs: dict[str, Any], wanted: Sequence[Any]) -> bool:
    """Whether ONNX Runtime, as its users run it, gets the test right."""
    onnxruntime.set_default_logger_severity(4)
    try:
        session = onnxruntime.InferenceSession(
            case.model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        found = session.run(None, inputs)
    except Exception:  # whatever its own package raises
        return False
    return all(agree(a, b, case) for a, b in zip(found, wanted, strict=True))


def _is_right(case: Any, inputs: dict[str, Any], wanted: Sequence[Any]) -> bool:
    """Whether the placement that a run would choose gives the expected numbers.

    Raises:
        CollageError: The model is refused, or no toolchain computes it.
    """
    inputs, shapes = _as_tensors(case.model, inputs)
    wanted = from_onnx(wanted)
    model = import_onnx(case.model, "the model", shapes, evaluate=evaluate)
    given = [inputs[name] for name, _ in model.inputs]

    def error_to(found: Sequence[Any], truth: Sequence[Any]) -> float:
        """Returns the largest relative error of the outputs, as a share of what is allowed."""
        return max(
            error_of(np.asarray(a), np.asarray(b))[1] / tolerance(kind.dtype)
            for a, b, (_, kind) in zip(found, truth, model.outputs, strict=True)
        )

    with tempfile.TemporaryDirectory(prefix="node-test-") as folder:
        placements, against = _placements(model, TrueValues.record(model, inputs, folder))
    # A run checks every contender against what the user's own file computes, and goes on to the
    # next where the numbers are wrong.
    truth = evaluate(case.model, inputs)
    for parts in placements:
        found = _run(model, parts, given)
        if error_to(found, truth) <= 1.0:
            # The expected numbers may lie further from a float32 result than the test's own bound.
            agrees = all(agree(a, b, case) for a, b in zip(found, wanted, strict=True))
            return agrees or error_to(found, wanted) <= 1.0
    raise ToolchainError(f"no toolchain computes the model: {against}.")


def _as_tensors(
    model: onnx.ModelProto, inputs: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Returns inputs as the engine holds them, and the shapes that a user gives by ``--shape``."""
    loose = {
        value.name
        for value in model.graph.input
        if not all(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    }
    found: dict[str, Any] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in inputs.items():
        if isinstance(value, list):
            found |= {f"{name}[{k}]": each for k, each in enumerate(value)}
            shapes |= {f"{name}[{k}]": np.shape(each) for k, each in enumerate(value)}
            if not value:
                shapes[f"{name}[]"] = ()
            continue
        text = np.asarray(value).dtype.kind in "OUS"
        found[name] = encoded(value) if text else value
        if np.size(value) == 0 or name in loose:
            shapes[name] = np.shape(value)
    return found, shapes


def _placements(model: Any, values: Any) -> tuple[list[Parts], dict[str, str]]:
    """Returns the placements on one toolchain that are right, or one of single operators.

    The second is why toolchains do not take the model.
    """
    graph = model.graph
    every = tuple(range(len(graph.operators)))
    if not every:
        return [[]], {}
    wholes: list[Parts] = []
    against: dict[str, str] = {}
    good: dict[int, str] = {}
    for name in TOOLCHAINS:
        toolchain = registry.get(name)
        instance = default_instance(toolchain)
        reasons = {n: toolchain.supports(graph, n, instance) for n in every}
        refused = next(filter(None, reasons.values()), None) or _wrong(
            model, values, instance, every
        )
        if refused is None:
            wholes.append([(name, every)])
            continue
        against[name] = refused
        for n in every if len(every) > 1 and not wholes else ():
            if n not in good and not reasons[n] and not _wrong(model, values, instance, (n,)):
                good[n] = name
    mixed = [[(good[n], (n,)) for n in every]] if len(good) == len(every) > 1 else []
    return [*wholes, *mixed], against


def _wrong(model: Any, values: Any, instance: Any, operators: tuple[int, ...]) -> str | None:
    """Says why a candidate is invalid; None where it computes the true values."""
    try:
        function = function_of(model, instance, operators, "f")
        with Compiled(function) as compiled:
            outputs = compiled.run([np.array(v) for v in values.inputs_of(function)])
            check(function, outputs, values.outputs_of(function))
    except CollageError as error:
        return str(error)[:200]
    except Exception as error:  # what measuring takes for the toolchain's fault, too
        return f"{type(error).__name__}: {error}"[:200]
    return None


def _run(model: Any, parts: Parts, inputs: Sequence[Any]) -> list[np.ndarray]:
    """Returns the outputs of a placement that is built as it is exported."""
    cover = [
        candidate_on(default_instance(registry.get(owner)), operators) for owner, operators in parts
    ]
    machine = relax.VirtualMachine(build_cover(model, cover).executable, runtime.cpu())
    tensors = [from_numpy(a, kind) for a, (_, kind) in zip(inputs, model.inputs, strict=True)]
    result = machine["main"](*tensors)
    results = [result] if len(model.outputs) == 1 else list(result)
    return [to_numpy(t, kind) for t, (_, kind) in zip(results, model.outputs, strict=True)]
