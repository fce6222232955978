"""The toolchain that is checked, and what several checks need of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from collage_engine.candidates.catalog import source_of
from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import TrueValues
from collage_engine.machine.loader.run_artifact import error_of
from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.partition.enumerate import enumerate_candidates
from collage_engine.records.candidate import Candidate
from collage_engine.records.graph import OperatorNumber, ValueIndex
from collage_engine.records.precision import FLOAT32, TF32, TOLERANCES
from collage_engine.records.toolchain import Target, ToolchainInstance, ToolchainState
from collage_engine.run.conformance.models import DEVICE_MODELS, MODELS, model_of
from collage_engine.support.errors import CollageError
from collage_engine.toolchains import registry
from collage_engine.toolchains.base import Function, Toolchain

TOLERANCE = TOLERANCES[FLOAT32]
"""Largest ``max|y−r| / max|r|`` of a float32 candidate of these models."""
ARCHITECTURE = "sm_86"
"""What is asked for where a toolchain compiles for NVIDIA devices only: an architecture for which
all of ours do, since CUTLASS begins with sm_80."""
MOST_COMPILED = 12
"""Candidates of a model that are compiled and run, evenly spread over those that are proposed;
chosen: some toolchains take a second for each."""


class Nonconformance(Exception):
    """What is wrong with the toolchain, as a sentence for its author."""


class NotApplicable(Exception):
    """Why a check says nothing about this toolchain here."""


def demand(condition: object, sentence: str) -> None:
    """Raise ``Nonconformance`` with the sentence unless the condition holds."""
    if not condition:
        raise Nonconformance(sentence)


@dataclass
class Case:
    """A case is a model with inputs and the true value of every node."""

    name: str
    model: ImportedModel
    inputs: Mapping[str, np.ndarray]
    truth: TrueValues


@dataclass
class Subject:
    """A toolchain under examination; ``folder`` is for whatever the checks write."""

    name: str
    folder: Path

    @cached_property
    def toolchain(self) -> Toolchain:
        """Return the toolchain itself."""
        return registry.get(self.name)

    @cached_property
    def state(self) -> ToolchainState:
        """Return what probing it in a child process finds now."""
        return registry.probe_all([self.name], anew=True)[0]

    @cached_property
    def target(self) -> Target:
        """Return the processor where it compiles for it, else an NVIDIA device."""
        if "cpu" in self.toolchain.about.targets:
            return Target()
        return Target.cuda(ARCHITECTURE)

    def instances(self, threads: int = 1) -> tuple[ToolchainInstance, ...]:
        """Return its instances for the target: of float32, on a device rounded to tf32.

        Some libraries for devices compute float32 in no other way.
        """
        if self.target.kind == "cpu":
            return self.toolchain.instances(Target(threads=threads), FLOAT32)
        return self.toolchain.instances(self.target, TF32)[-1:]

    def needs_to_run(self) -> None:
        """Check that something that the toolchain compiles can run here.

        Raises:
            NotApplicable: Nothing can.
        """
        if self.target.kind != "cpu":
            raise NotApplicable("what it compiles runs on an NVIDIA device only")
        if not self.state.available:
            raise NotApplicable(f"it is not available here: {self.state.reason}")

    @cached_property
    def cases(self) -> list[Case]:
        """Return every model of the suite, with its true values."""
        cases = []
        models = MODELS if self.target.kind == "cpu" else DEVICE_MODELS
        for name, graph in models.items():
            model = import_onnx(model_of(graph))
            inputs = model.random_inputs(0)
            truth = TrueValues.record(model, inputs, self.folder / "values" / name)
            cases.append(Case(name, model, inputs, truth))
        return cases

    def candidates(self, case: Case, instance: ToolchainInstance) -> tuple[Candidate, ...]:
        """Return its candidates of a model, with plain borders and with others."""
        graph = case.model.graph
        return enumerate_candidates(graph, [source_of(graph, self.toolchain, instance)])

    def functions(self, case: Case, instance: ToolchainInstance) -> list[Function]:
        """Return some of its candidates with plain borders as functions, small and large ones."""
        records = [c for c in self.candidates(case, instance) if not (c.takes or c.gives)]
        step = max(1, -(-len(records) // MOST_COMPILED))
        chosen = {r.id: r for r in (*records[::step], *records[-1:])}
        return [
            function_of(case.model, instance, record.nodes, f"check{number}")
            for number, record in enumerate(chosen.values())
        ]

    def run(self, case: Case, function: Function, calls: int = 1) -> list[list[np.ndarray]]:
        """Return the outputs of so many calls of a compiled function on its true inputs.

        Raises:
            Nonconformance: It cannot be compiled, or the call fails.
        """
        given = [np.array(value) for value in case.truth.inputs_of(function)]
        before = [value.copy() for value in given]
        try:
            with Compiled(function) as compiled:
                results = [[a.copy() for a in compiled.run(given)] for _ in range(calls)]
        except CollageError as error:
            raise Nonconformance(
                f"{described(case, function)}: supports() promises it, compiling says {error}"
            ) from error
        kept = all(np.array_equal(a, b) for a, b in zip(given, before, strict=True))
        demand(kept, f"{described(case, function)}: the call writes to its inputs")
        return results

    def compare(self, case: Case, function: Function, outputs: Sequence[np.ndarray]) -> None:
        """Demands that outputs are the true ones, within the tolerance."""
        pairs = zip(outputs, case.truth.outputs_of(function), strict=True)
        error = max(error_of(output, wanted)[1] for output, wanted in pairs)
        demand(
            error <= TOLERANCE,
            f"{described(case, function)}: the outputs are wrong by {error:.2g} of their largest "
            f"(at most {TOLERANCE:g})",
        )


def computed(
    model: ImportedModel,
    instance: ToolchainInstance,
    numbers: Sequence[OperatorNumber],
    feeds: Mapping[str, np.ndarray],
) -> dict[ValueIndex, np.ndarray] | None:
    """Return what some operators compute as one partition of the model's inputs, by value.

    Args:
        model: The model.
        instance: The toolchain instance.
        numbers: The operators, which read nothing but the model's inputs.
        feeds: These inputs by name.

    Returns:
        The outputs of the partition; None where the toolchain refuses to compile it.
    """
    function = function_of(model, instance, numbers, "check")
    given = [feeds[model.graph.values[index].name] for index in function.inputs]
    try:
        with Compiled(function) as compiled:
            outputs = [array.copy() for array in compiled.run(given)]
    except CollageError:
        return None
    return dict(zip(function.outputs, outputs, strict=True))


def described(case: Case, function: Function) -> str:
    """Return a function in words, for a sentence."""
    calls = [function.graph.nodes[i] for i in function.members]
    operators = ", ".join(node.op for node in calls[:6]) + (", …" if len(calls) > 6 else "")
    return f"model {case.name}, operators {operators}"
