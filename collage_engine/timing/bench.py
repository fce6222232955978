"""Times candidates of an ONNX model, as compiled by their toolchains.

Runs in the measuring child; imports TVM and the toolchains' libraries.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from collage_engine.candidates.catalog import may_lose_nan
from collage_engine.lowering.accuracy import (
    compares,
    counts_values,
    is_exact,
    is_quantised,
    relative_bound,
    roundings,
    steps_apart,
    unsettled_share,
    wrong_by,
)
from collage_engine.lowering.compile import Compiled, compile_ahead, has_kernels
from collage_engine.lowering.extract import function_of_candidate
from collage_engine.lowering.reference import TrueValues, run_onnx
from collage_engine.lowering.rounding_noise import rounding_noise, widened
from collage_engine.lowering.tensors import as_logical, as_stored
from collage_engine.machine.loader.run_artifact import error_of
from collage_engine.model.importer import import_model
from collage_engine.model.onnx_slice import slice_model
from collage_engine.records.candidate import Candidate
from collage_engine.records.format import PLAIN
from collage_engine.records.graph import OperatorSet
from collage_engine.records.precision import TOLERANCES
from collage_engine.support.errors import CollageError, WrongNumbersError
from collage_engine.timing.child import WRONG_NUMBERS, OpenRequest
from collage_engine.timing.protocol import TimedCall
from collage_engine.toolchains.base import Function


@dataclass
class PreparedCandidate:
    """A compiled candidate whose numbers were right, bound to its true inputs."""

    compiled: Compiled
    time: TimedCall
    max_rel_error: float | None

    def close(self) -> None:
        """Give back what the compiled candidate holds."""
        self.compiled.close()


class ModelBench:
    """A model with its true values, on which candidates are prepared for timing.

    Attributes:
        model: The imported model.
        truth: The true values on the run's inputs.
    """

    def __init__(self, request: OpenRequest) -> None:
        model = request.model
        self.model = import_model(model.path, model.shapes, model.sha256, run_onnx)
        self.truth = TrueValues(request.truth_folder)
        self._folder = request.truth_folder
        self._noise: dict[OperatorSet, dict[int, float]] = {}
        """Rounding noise of the sub-graphs whose candidates seemed wrong, by nodes and output."""
        self._count = 0
        self._libraries: dict[str, Path] = {}
        """What was compiled ahead, by candidate: those of one key have other weights."""

    def compile_ahead(self, candidates: Sequence[Candidate], limit_s: float) -> None:
        """Compile candidates of TVM that are going to be prepared, on all processors.

        Args:
            candidates: The candidates.
            limit_s: Seconds after which what is not compiled is left to ``prepare``.
        """
        wanted = [c for c in candidates if has_kernels(c.instance)]
        functions = [partial(self._function, candidate, "") for candidate in wanted]
        folder = Path(tempfile.mkdtemp(prefix="ahead-", dir=self._folder))
        libraries = compile_ahead(functions, folder, limit_s)
        self._libraries = {c.id: library for c, library in zip(wanted, libraries, strict=True)}

    def _function(self, candidate: Candidate, number: str) -> Function:
        """Return a candidate's function, whose symbol ends with a number."""
        return function_of_candidate(self.model, candidate, f"collage_candidate{number}")

    def prepare(self, candidate: Candidate, about_to_run: Callable[[], None]) -> PreparedCandidate:
        """Compile a candidate, run it once on its true inputs, and check its outputs.

        Args:
            candidate: The candidate.
            about_to_run: Is called between compiling and running, so that a crash has a culprit.

        Returns:
            The candidate, bound to its true inputs.

        Raises:
            WrongNumbersError: Its outputs are wrong.
            ToolchainError: The toolchain cannot take it.
        """
        self._count += 1  # a fresh symbol each time: libraries cache code by name
        function = self._function(candidate, f"_{self._count}")
        compiled = Compiled(function, self._libraries.get(candidate.id))
        try:
            # Copies: mapped files are neither aligned nor ours to keep in the page cache.
            inputs = [
                np.array(as_stored(value, function.takes.get(index, PLAIN)), order="C")
                for index, value in zip(
                    function.inputs, self.truth.inputs_of(function), strict=True
                )
            ]
            about_to_run()
            outputs = [
                as_logical(value, function.gives.get(index, PLAIN))
                for index, value in zip(function.outputs, compiled.run(inputs), strict=True)
            ]
            error = check(
                function,
                outputs,
                self.truth.outputs_of(function),
                lambda bound: self.rounding_noise(function, bound),
                loses_nan=may_lose_nan(self.model.graph, candidate.instance, function.members),
            )
            return PreparedCandidate(compiled, compiled.timer(inputs), error)
        except BaseException:
            compiled.close()
            raise

    def rounding_noise(self, function: Function, bound: float) -> dict[int, float]:
        """Return how far a sub-graph's outputs move on its true inputs; empty where nothing tells.

        Args:
            function: The sub-graph.
            bound: The tolerance that holds without noise.

        Returns:
            By value index of the output, see ``lowering.rounding_noise``.
        """
        nodes = function.nodes
        if nodes not in self._noise:
            inputs, outputs = function.inputs, function.outputs
            try:
                written = slice_model(self.model, inputs, outputs)
            except CollageError:
                self._noise[nodes] = {}
                return {}
            given = {f"v{index}": np.asarray(self.truth.value(index)) for index in inputs}
            noise = rounding_noise(written, given, bound) or []
            self._noise[nodes] = dict(zip(outputs, noise, strict=False))
        return self._noise[nodes]


def check(
    function: Function,
    outputs: list[np.ndarray],
    truth: list[np.ndarray],
    noise: Callable[[float], Mapping[int, float]] = lambda bound: {},
    *,
    loses_nan: bool = False,
) -> float | None:
    """Return the largest ``max|y−r| / max|r|`` of a candidate's outputs.

    It is None where no true value is finite, so that nothing was compared.

    Args:
        function: What the candidate computes.
        outputs: What it made of its true inputs.
        truth: What it should have made of them.
        noise: Asked when an output seems wrong, with the tolerance: how far the outputs move when
            inputs and weights change in the last bit, by value index.
        loses_nan: Whether NaN may have become something else, as the toolchain says.

    Raises:
        WrongNumbersError: An output is wrong, and not by rounding that the sub-graph amplifies.
    """
    largest: float | None = None
    depths = roundings(function.graph, function.nodes)
    for index, computed, true in zip(function.outputs, outputs, truth, strict=True):
        kind = function.graph.values[index].type
        error = error_of(computed, true, loses_nan=loses_nan)
        depth, exact = depths[index], is_exact(kind.dtype)
        steps = 1.0 if depth and is_quantised(function.graph, index) else None
        steps = steps or _step_of(function, index, depth)
        if computed.shape != true.shape:
            wrong: str | None = f"shape {list(computed.shape)} instead of {list(true.shape)}"
        elif steps is not None and np.isfinite(error[0]):
            wrong = steps_apart(computed, true, steps, depth)
        else:
            bound = 0.0 if exact else tolerance_of(function, kind.dtype, depth)
            wrong = wrong_by(error, bound, kind.dtype)
        if wrong is not None and np.isfinite(error[0]):
            moved = noise(tolerance_of(function, "float32", depth)).get(index, 0.0)
            if counts_values(true.dtype):
                widest = unsettled_share(moved, true.size)
            else:
                widest = widened(0.0, moved) if steps is not None or not exact else 0.0
            if error[1] <= widest:
                wrong = None
        if wrong is not None:
            node = function.graph.operator_of(index)
            where = "" if node is None else node.name or node.op
            raise WrongNumbersError(f"{WRONG_NUMBERS} in the output of {where}: {wrong}")
        if compares(true):
            largest = max(largest or 0.0, error[1])
    return largest


def _step_of(function: Function, index: int, depth: int) -> float | None:
    """Return the quantisation step of an output that is a dequantised value rounded inside.

    Args:
        function: What the candidate computes.
        index: The output.
        depth: Roundings to 8 bits on the way to it.

    Returns:
        The scale of the dequantisation; None for any other output, or one scale per channel.
    """
    node = function.graph.operator_of(index)
    if not depth or node is None or node.op != "dequantize" or node.type.dtype != "float32":
        return None
    scale = function.graph.values[node.inputs[1]]
    if not scale.constant or scale.type.elements != 1:
        return None
    return float(np.asarray(function.constant(scale.index)).reshape(()))


def tolerance_of(function: Function, dtype: str, depth: int = 0) -> float:
    """Return the bound on ``max|y-r| / max|r|`` of an output.

    It is the loosest of what the output's type, the instance's precision, the types of values
    inside and roundings to 8 bits allow.

    Args:
        function: What the candidate computes.
        dtype: The output's element type, one of ``TOLERANCES``.
        depth: Roundings to 8 bits on the way to the output (``lowering/accuracy.py``). Values that
            are only dequantised, weights above all, loosen nothing.
    """
    bound = max(TOLERANCES[dtype], TOLERANCES.get(function.instance.precision, 0.0))
    if depth:
        return max(bound, relative_bound(depth))
    graph = function.graph
    inside = [kind for i in function.members for kind in graph.nodes[i].types]
    inside += [graph.values[i].type for i in function.constants]
    kinds = {kind.dtype for kind in inside} - {"float64"}
    return max([bound, *(TOLERANCES[k] for k in kinds if k in TOLERANCES)])
