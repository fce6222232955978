"""Defines what a toolchain can do beyond its core: optional protocols, found by ``isinstance``.

A toolchain has a capability when its class has the protocol's methods; it declares nothing. What
has an answer for every toolchain is no capability but a method of the core with that answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function, Toolchain

if TYPE_CHECKING:
    import numpy as np

    from collage_engine.model.dataflow_graph import DataflowGraph
    from collage_engine.records.graph import TensorType
    from collage_engine.records.placement import Layer, Profile
    from collage_engine.records.toolchain import ToolchainInstance, TuneRecord, TuneTask


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


def tuner_of(toolchain: Toolchain) -> Tunes:
    """Return the toolchain as what tunes its kernels.

    Raises:
        ToolchainError: It has nothing to tune.
    """
    if not isinstance(toolchain, Tunes):
        raise ToolchainError(f"{toolchain.name} has nothing to tune")
    return toolchain
