"""Places the node tests of the ONNX standard, each with the checks of a run.

``python -m tests.support.node_tests FILE`` does all of them that ONNX Runtime passes and prints the
table for ``tests/benchmarks/RESULTS.md``. FILE gets a line of JSON for each test; what is in it
already is not done again, so that a command that was interrupted goes on when it is given again.
The status is 1 where a test is wrong or failed.

With numbers behind FILE it does these tests only, as the command starts itself: a test that ends
or hangs its process costs that test.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

TOOLCHAINS = ("tvm", "onednn", "openblas", "openvino", "onnxruntime")
"""In the order in which an operator is given to them where they pass; ONNX Runtime, which takes
the most, last."""


@dataclass
class Outcome:
    """What became of a node test.

    ``state`` is ``right``, ``refused`` (with a sentence), ``wrong`` (a number that the checks let
    through) or ``failed``; ``skipped`` where ONNX Runtime itself does not pass.
    """

    name: str
    operator: str
    state: str
    said: str = ""
    toolchains: dict[str, str] = field(default_factory=dict)
    """``ok``, or why the toolchain does not take the test's operators."""
    cover: list[str] = field(default_factory=list)
    """The toolchains of the placement that was built."""


def node_tests() -> list[Any]:
    """Returns all node tests of the installed package, in its order."""
    import warnings

    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(load_model_tests(kind="node"))


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
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        found = session.run(None, inputs)
    except Exception:  # whatever its own package raises
        return False
    return all(agree(a, b, case) for a, b in zip(found, wanted, strict=True))


def place(case: Any) -> Outcome:
    """Open the test's model, check every toolchain on it, build a placement and compare."""
    from collage_engine.records.errors import CollageError

    outcome = Outcome(case.name, _operator(case.model), "skipped")
    try:
        given, made = case.data_sets[0]
        inputs = {v.name: value_of(x) for v, x in zip(case.model.graph.input, given, strict=False)}
        wanted = [value_of(y) for y in made]
    except Exception as error:  # the package's own tests hold what its readers cannot read
        outcome.said = str(error)
        return outcome
    if not passes_onnx_runtime(case, inputs, wanted):
        return outcome
    try:
        _place(case, inputs, wanted, outcome)
    except CollageError as error:
        outcome.state, outcome.said = "refused", str(error)
    except Exception as error:
        outcome.state, outcome.said = "failed", f"{type(error).__name__}: {error}"[:500]
    return outcome


def _place(case: Any, inputs: dict[str, Any], wanted: Sequence[Any], outcome: Outcome) -> None:
    from collage_engine.lowering.accuracy import errors, tolerance
    from collage_engine.lowering.reference import TrueValues
    from collage_engine.lowering.reference import run_onnx as evaluate
    from collage_engine.model.importer import import_onnx
    from collage_engine.model.onnx_values import from_onnx
    from collage_engine.records.errors import ToolchainError

    inputs, shapes = _as_tensors(case.model, inputs)
    wanted = from_onnx(wanted)
    model = import_onnx(case.model, "the model", shapes, evaluate=evaluate)
    given = [inputs[name] for name, _ in model.inputs]

    def error_to(found: Sequence[Any], truth: Sequence[Any]) -> float:
        """Returns the largest relative error of the outputs, as a share of what is allowed."""
        return max(
            errors(np.asarray(a), np.asarray(b))[1] / tolerance(kind.dtype)
            for a, b, (_, kind) in zip(found, truth, model.outputs, strict=True)
        )

    with tempfile.TemporaryDirectory(prefix="node-test-") as folder:
        values = TrueValues.record(model, inputs, folder)
        wholes, single = _taken(model, values, outcome)
    # A run checks every contender against what the user's own file computes, and goes on to the
    # next where the numbers are wrong.
    truth = evaluate(case.model, inputs)
    for parts in [*wholes, *single]:
        found = _run(model, parts, given)
        outcome.cover = list(dict.fromkeys(owner for owner, _ in parts))
        if error_to(found, truth) > 1.0:
            for owner in outcome.cover:
                outcome.toolchains[owner] = "wrong numbers in the whole model"
            continue
        # The expected numbers may lie further from a float32 result than the test's own bound.
        agrees = all(agree(a, b, case) for a, b in zip(found, wanted, strict=True))
        outcome.state = "right" if agrees or error_to(found, wanted) <= 1.0 else "wrong"
        return
    raise ToolchainError(f"no toolchain computes the model: {outcome.toolchains}.")


def _as_tensors(
    model: onnx.ModelProto, inputs: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Returns inputs as the engine holds them, and the shapes that a user gives by ``--shape``."""
    from collage_engine.model.texts import encoded

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


Parts = list[tuple[str, tuple[int, ...]]]
"""Toolchain and operators of each partition of a placement."""


def _taken(model: Any, values: Any, outcome: Outcome) -> tuple[list[Parts], list[Parts]]:
    """Returns the placements on one toolchain that are right, and those of single operators."""
    from collage_engine.records.toolchain import Target
    from collage_engine.toolchains import registry

    graph = model.graph
    every = tuple(range(len(graph.operators)))
    wholes: list[Parts] = [] if every else [[]]
    good: dict[int, str] = {}
    for name in TOOLCHAINS:
        toolchain = registry.get(name)
        instance = toolchain.instances(Target.cpu(1), "float32")[0]
        against = {n: toolchain.supports(graph, graph.operators[n], instance) for n in every}
        able = [n for n in every if against[n] is None]
        if every and len(able) == len(every):
            reason = _wrong(model, values, instance, every)
            outcome.toolchains[name] = reason or "ok"
            if reason is None:
                wholes.append([(name, every)])
                continue
        elif every:
            outcome.toolchains[name] = next(why for why in against.values() if why)
        for n in able if len(every) > 1 and not wholes else []:
            if n not in good and _wrong(model, values, instance, (n,)) is None:
                good[n] = name
    return wholes, [[(good[n], (n,)) for n in every]] if len(good) == len(every) > 1 else []


def _wrong(model: Any, values: Any, instance: Any, operators: tuple[int, ...]) -> str | None:
    """Says why a candidate is invalid; None where it computes the true values."""
    from collage_engine.lowering.compile import compile_function
    from collage_engine.lowering.extract import function_of
    from collage_engine.records.errors import CollageError
    from collage_engine.timing.bench import check

    try:
        function = function_of(model, instance, operators, "f")
        with compile_function(function) as compiled:
            outputs = compiled.run([np.array(v) for v in values.inputs_of(function)])
            check(function, outputs, values.outputs_of(function))
    except CollageError as error:
        return str(error)[:200]
    except Exception as error:  # what measuring takes for the toolchain's fault, too
        return f"{type(error).__name__}: {error}"[:200]
    return None


def _run(model: Any, parts: Parts, inputs: Sequence[Any]) -> list[np.ndarray]:
    """Returns the outputs of a placement that is built as it is exported."""
    from tvm import relax, runtime

    from collage_engine.build.build import build_cover
    from collage_engine.lowering.tensors import from_numpy, to_numpy
    from collage_engine.records.toolchain import Target
    from collage_engine.toolchains import registry
    from tests.support.covers import candidate_on

    cover = [
        candidate_on(registry.get(owner).instances(Target.cpu(1), "float32")[0], operators)
        for owner, operators in parts
    ]
    machine = relax.VirtualMachine(build_cover(model, cover).executable, runtime.cpu())
    tensors = [from_numpy(a, kind) for a, (_, kind) in zip(inputs, model.inputs, strict=True)]
    result = machine["main"](*tensors)
    results = [result] if len(model.outputs) == 1 else list(result)
    return [to_numpy(t, kind) for t, (_, kind) in zip(results, model.outputs, strict=True)]


def _operator(model: onnx.ModelProto) -> str:
    """Returns the operator that a test is about."""
    return max(model.graph.node, key=lambda n: n.op_type != "Constant").op_type


def results(lines: Path, names: Sequence[str] | None = None) -> Iterator[Outcome]:
    """Run the tests in child processes; one that ends or hangs one costs that test.

    Args:
        lines: File that the children append to; tests that are in it are not done again.
        names: Names of the tests; None: all.
    """
    import subprocess
    import time

    order = [case.name for case in node_tests()]
    wanted = [i for i, name in enumerate(order) if names is None or name in names]
    lines.touch()
    begin = lines.read_text().count("\n")
    while begin < len(wanted):
        command = [sys.executable, "-m", "tests.support.node_tests", str(lines)]
        child = subprocess.Popen(
            [*command, ",".join(map(str, wanted[begin:]))], stderr=subprocess.DEVNULL
        )
        done, since = begin, time.monotonic()
        while child.poll() is None:
            time.sleep(0.2)
            count = lines.read_text().count("\n")
            if count > done:
                done, since = count, time.monotonic()
            if time.monotonic() - since > LONGEST_S:
                child.kill()
                child.wait()
        done = lines.read_text().count("\n")
        if done < len(wanted):
            how = "hang" if child.returncode == -9 else f"crash ({child.returncode})"
            lost = Outcome(order[wanted[done]], "?", "failed", how)
            with lines.open("a") as stream:
                stream.write(json.dumps(asdict(lost)) + "\n")
            done += 1
        begin = done
    for line in lines.read_text().splitlines():
        yield Outcome(**json.loads(line))


LONGEST_S = 600.0
"""Seconds that a test may take before it is taken for hanging; chosen: the slowest takes 10 on a
processor of its own, which a busy machine shares among a dozen programs."""


def table(outcomes: Sequence[Outcome]) -> str:
    """Returns, in Markdown, in how many tests of an operator each toolchain is right.

    It counts tests all of whose operators the toolchain takes.
    """
    rows: dict[str, list[Outcome]] = {}
    about = {outcome.name: outcome.operator for outcome in outcomes}
    for outcome in outcomes:
        if outcome.state != "skipped":
            # The test of an operator's definition by simpler ones is about that operator.
            written_out = about.get(outcome.name.removesuffix("_expanded"), outcome.operator)
            rows.setdefault(written_out, []).append(outcome)
    said = ["| operator | tests | right | " + " | ".join(TOOLCHAINS) + " |"]
    said.append("|---" * (3 + len(TOOLCHAINS)) + "|")
    for operator, found in sorted(rows.items()):
        right = sum(o.state == "right" for o in found)
        counts = [sum(o.toolchains.get(t) == "ok" for o in found) for t in TOOLCHAINS]
        shown = " | ".join(str(c) if c else "–" for c in counts)
        said.append(f"| {operator} | {len(found)} | {right} | {shown} |")
    return "\n".join(said)


def report(outcomes: Sequence[Outcome]) -> int:
    """Print the table, how many tests are in which state, and what is wrong; 1 where any is."""
    print(table(outcomes))
    print(Counter(outcome.state for outcome in outcomes))
    bad = [o for o in outcomes if o.state in ("wrong", "failed")]
    for outcome in bad:
        print(f"{outcome.name}: {outcome.state}: {outcome.said}")
    return 1 if bad else 0


def main(arguments: Sequence[str]) -> int:
    """Do all tests and report, or do those with the given numbers."""
    lines, *numbers = arguments
    if not numbers:
        return report(list(results(Path(lines))))
    cases = node_tests()
    for number in map(int, numbers[0].split(",")):
        outcome = place(cases[number])
        with Path(lines).open("a") as stream:
            stream.write(json.dumps(asdict(outcome)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
