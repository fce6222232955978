"""Defines what a toolchain can do beyond its core: optional protocols, found by ``isinstance``.

A toolchain has a capability when its class has the protocol's methods; it declares nothing. The
functions at the end ask a toolchain that may or may not have a capability, and give the answer
of one that has not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from collage_engine.records.format import PLAIN
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function, Toolchain

if TYPE_CHECKING:
    import numpy as np

    from collage_engine.model.dataflow_graph import DataflowGraph
    from collage_engine.records.graph import OperatorNumber, OperatorSet, TensorType
    from collage_engine.records.placement import Layer, Profile
    from collage_engine.records.toolchain import (
        RuntimeLibrary,
        ToolchainInstance,
        TuneRecord,
        TuneTask,
    )


@runtime_checkable
class LowersToTir(Protocol):
    """The capability to lower a function to TIR, which TVM compiles with the module around it.

    Partitions of such a toolchain are inlined into the whole module, so that TVM's memory planning
    sees every value of theirs; the groups of TVM's ``FuseOps`` are among its candidates.
    """

    def lower(self, function: Function) -> Any:
        """Return the function as an ``IRModule``: scheduled PrimFuncs and a Relax ``main``.

        ``main`` takes ``function.inputs`` and returns the output, or a tuple of them; its single
        dataflow block calls PrimFuncs by ``call_tir`` with packed weights as constants.

        Raises:
            ToolchainError: It cannot take the function; the text says why.
        """
        ...


@runtime_checkable
class RoundsSomeProducts(Protocol):
    """The capability to say which products it rounds, if in reduced precision it rounds not all."""

    def rounds(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> bool:
        """Tell whether an instance in reduced precision would round a product's operands.

        Args:
            graph: The dataflow graph.
            index: The product, a node of it (``records.precision.PRODUCTS``).
            instance: The instance.
        """
        ...


@runtime_checkable
class SwallowsNan(Protocol):
    """The capability to say which operators make a number of NaN, which the standard hands on."""

    def swallows_nan(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> bool:
        """Tell whether a call may give a number where the standard gives NaN.

        Args:
            graph: The dataflow graph.
            index: The call, a node of it that the toolchain supports.
            instance: The instance that runs it.
        """
        ...


@runtime_checkable
class JudgesSets(Protocol):
    """The capability to say which sets of calls it takes, if it takes not all that it supports."""

    def takes_set(
        self, graph: DataflowGraph, instance: ToolchainInstance, nodes: OperatorSet
    ) -> bool:
        """Tell whether a set of calls that it supports is a candidate of an instance."""
        ...


@runtime_checkable
class BorderFormats(Protocol):
    """The capability to take and give values in other formats than plain row-major tensors."""

    def formats(self, instance: ToolchainInstance) -> tuple[str, ...]:
        """Return the formats (``records.format``) at the borders of partitions, plain among them.

        A candidate whose border the toolchain cannot serve in a format is refused when it is
        compiled.
        """
        ...


@runtime_checkable
class PrecompilesShared(Protocol):
    """The capability to compile beforehand what many candidates share and what takes long."""

    def precompile(
        self,
        graph: DataflowGraph,
        instance: ToolchainInstance,
        sets: Sequence[OperatorSet],
        now: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        """Compiles what candidates share, before any of them is compiled alone.

        Args:
            graph: The model's graph.
            instance: The instance whose candidates they are.
            sets: The candidates, as sets of calls.
            now: Is called with what is being compiled.
            stop: Says when to return soon, with the work undone.

        Raises:
            ToolchainError: The shared part cannot be compiled.
        """
        ...


@runtime_checkable
class LibrariesPerFunction(Protocol):
    """The capability to name an artifact's libraries by the functions that are in it."""

    def libraries_for(self, functions: Sequence[Function]) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries for an artifact that holds these compiled functions."""
        ...


@runtime_checkable
class Inspectable(Protocol):
    """The capability to describe what is inside a compiled function."""

    def inside(self, module: Any) -> dict[str, Any]:
        """Return what is inside a compiled or lowered module.

        Returns:
            Plan steps, algorithms, layouts and the like, as JSON values.
        """
        ...


@runtime_checkable
class ConvertsFormats(Protocol):
    """The capability to write kernels that bring a value from one format to another."""

    @property
    def name(self) -> str:
        """Returns the name of the toolchain."""
        ...

    def conversion(self, kind: TensorType, source: str, target: str, threads: int) -> Any:
        """Return a scheduled PrimFunc that brings a value from one stored form to another.

        Its parameters are the stored source and the stored target.

        Args:
            kind: The value's logical type.
            source: The format that it has.
            target: The format that it gets.
            threads: How many threads of the processor may share the work.
        """
        ...


@runtime_checkable
class Tunes(Protocol):
    """The capability to search for better kernels, which is asked in a child process.

    What is found stands in tables (``kernels.choices``), which instances name by their hash.
    """

    def tuning_tasks(self, function: Function) -> list[TuneTask]:
        """Return the kernels of a candidate that can be tuned."""
        ...

    def tune(
        self,
        task: TuneTask,
        instance: ToolchainInstance,
        earlier: TuneRecord | None,
        seconds: float,
        better: Callable[[TuneRecord], None],
    ) -> TuneRecord:
        """Search for better kernels for at most ``seconds``, from what is known on.

        Args:
            task: The kernel that is tuned, one of ``tuning_tasks``.
            instance: The instance whose kernel it is.
            earlier: What earlier searches found; None where there were none.
            seconds: How long the search may take.
            better: Is called with the record whenever something faster is found, should this
                process not live to return.

        Returns:
            The record of the best that was found.
        """
        ...


@runtime_checkable
class ReadsProfiles(Protocol):
    """The capability to read what the toolchain's own tools write of a model's layers."""

    def read_profile(self, content: Any) -> Profile | None:
        """Return the layers of a file.

        Args:
            content: What the file says, as JSON values; a text where it is no JSON.

        Returns:
            The layers; None: these tools write no such file.
        """
        ...


@runtime_checkable
class ProfilesLayers(Protocol):
    """The capability to profile whole models by the toolchain's own means, as its users do."""

    def profile_layers(
        self, file: str, threads: int, precision: str, inputs: Mapping[str, np.ndarray]
    ) -> Profile:
        """Run a model some times in the toolchain's own Python interface and return its layers.

        Everything is left at the library's defaults but the number of threads and the precision.

        Args:
            file: The path of the user's ONNX file.
            threads: The number of threads that the model may use; 0: the library's default.
            precision: The precision of the instance (``records.precision``).
            inputs: An array for each input, by name.

        Raises:
            ToolchainError: The toolchain cannot take the file or its inputs.
        """
        ...


@runtime_checkable
class ProfilesPartitions(Protocol):
    """The capability to say what the layers inside a partition of a placement take."""

    def partition_layers(self, graph: DataflowGraph, said: Mapping[str, Any]) -> tuple[Layer, ...]:
        """Return the layers of a partition in the order in which they ran.

        Args:
            graph: The model's graph.
            said: What the runtime module's function ``collage.layers`` answered after some runs.
        """
        ...


class OnnxSession(Protocol):
    """The protocol of an ONNX model that can be evaluated."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Returns the names of inputs that need a value, then of those that have one already."""
        ...

    def run(
        self, outputs: Sequence[str] | None, feeds: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Return the values of these outputs; None: of all, in the file's order."""
        ...


@runtime_checkable
class EvaluatesOnnx(Protocol):
    """The capability to evaluate ONNX models faithfully, as the oracle for all results."""

    def open_onnx(
        self,
        model: bytes | str,
        *,
        threads: int = 0,
        optimise: bool = False,
        weights: Mapping[str, np.ndarray] | None = None,
    ) -> OnnxSession:
        """Return a session of a serialised model or of a file.

        Args:
            model: The model's bytes, or the path of its file.
            threads: How many threads it may use; 0: its own default.
            optimise: Whether it may change the order of computations; else it runs what is
                written.
            weights: Values of the tensors that a serialised model does not hold, by name.

        Raises:
            ToolchainError: Its package is not installed; the text names it.
        """
        ...


def border_formats(toolchain: Toolchain, instance: ToolchainInstance) -> tuple[str, ...]:
    """Return the formats that a toolchain's partitions can take and give.

    Without the capability ``BorderFormats`` it is the plain format only.
    """
    return toolchain.formats(instance) if isinstance(toolchain, BorderFormats) else (PLAIN,)


def takes_set(
    toolchain: Toolchain, graph: DataflowGraph, instance: ToolchainInstance, nodes: OperatorSet
) -> bool:
    """Tell whether a set of calls is a candidate; without the capability each of supported ones."""
    return not isinstance(toolchain, JudgesSets) or toolchain.takes_set(graph, instance, nodes)


def libraries_for(
    toolchain: Toolchain, functions: Sequence[Function]
) -> tuple[RuntimeLibrary, ...]:
    """Return what an artifact with these functions of the toolchain must carry."""
    if isinstance(toolchain, LibrariesPerFunction):
        return toolchain.libraries_for(functions)
    return toolchain.runtime_libraries()


def inside(toolchain: Toolchain, module: Any) -> dict[str, Any]:
    """Return what is inside a compiled module; empty without the capability."""
    return toolchain.inside(module) if isinstance(toolchain, Inspectable) else {}


def tuner_of(toolchain: Toolchain) -> Tunes:
    """Return the toolchain as what tunes its kernels.

    Raises:
        ToolchainError: It has nothing to tune.
    """
    if not isinstance(toolchain, Tunes):
        raise ToolchainError(f"{toolchain.name} has nothing to tune")
    return toolchain


def swallows_nan(
    toolchain: Toolchain, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
) -> bool:
    """Tell whether a toolchain may make a number of NaN; without the capability it hands NaN on."""
    return isinstance(toolchain, SwallowsNan) and toolchain.swallows_nan(graph, index, instance)


def rounds(
    toolchain: Toolchain, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
) -> bool:
    """Tell whether an instance in reduced precision rounds a product.

    Without the capability it rounds all of them.
    """
    if isinstance(toolchain, RoundsSomeProducts):
        return toolchain.rounds(graph, index, instance)
    return True
