"""The contract between the engine and a toolchain.

A toolchain is asked, in this order: is it here (``probe``), which instances does it offer
(``instances``), can it run an operator (``supports``), which sub-graphs does it propose
(``partition_spec``), and at last to compile one (``compile`` or ``lower``). Only the last
may import TVM or load the toolchain's library; ``probe`` runs in a child process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members
from collage_engine.records.format import PLAIN, stored_type
from collage_engine.records.graph import TensorType
from collage_engine.records.numbering import NodeIndex, NodeSet, OperatorNumber
from collage_engine.records.precision import full_places
from collage_engine.records.toolchain import RuntimeLibrary, ToolchainInstance, ToolchainState

if TYPE_CHECKING:
    import numpy as np

    from collage_engine.model.importer import ImportedModel
    from collage_engine.partition.rule_trees import PatternEntry
    from collage_engine.partition.spec import PartitionSpec


MODULES = "external_mods"
"""Attribute of an ``IRModule``: runtime modules that come with it, as ``RunCodegen`` leaves it."""


@dataclass(frozen=True)
class Function:
    """A sub-graph taken out of its model, ready to be compiled.

    ``nodes`` is a closed index set (calls, the constants they read, tuples, projections);
    ``inputs`` and ``outputs`` are the tensor values it takes and gives, in argument order.
    The compiled function is called as ``symbol(*inputs, *outputs)``, outputs allocated by the
    caller. All are plain row-major tensors, except that a value in ``takes`` or ``gives`` is a
    tensor of its *stored* shape in that format (``records.format``); operators keep meaning the
    logical axes. Constants are plain.
    """

    symbol: str
    model: ImportedModel
    graph: DataflowGraph
    nodes: NodeSet
    inputs: tuple[NodeIndex, ...]
    outputs: tuple[NodeIndex, ...]
    instance: ToolchainInstance
    spin: bool = False
    """Whether the runtime's threads may spin between calls (a property of the placement)."""
    takes: Mapping[int, str] = field(default_factory=dict, hash=False)
    """Graph index of an input → its format; absent: plain."""
    gives: Mapping[int, str] = field(default_factory=dict, hash=False)
    """Graph index of an output → its format; absent: plain."""

    @property
    def members(self) -> tuple[NodeIndex, ...]:
        return tuple(members(self.nodes))

    @property
    def left_full(self) -> frozenset[int]:
        """Graph indices of the calls whose products the instance leaves in float32."""
        places = full_places(self.instance)
        if not places:
            return frozenset()
        calls = [i for i in self.graph.operators if self.nodes >> i & 1]
        return frozenset(calls[place] for place in places if place < len(calls))

    def input_type(self, index: int) -> TensorType:
        """Type of the tensor that is passed for an input: its stored shape."""
        return stored_type(self.graph.nodes[index].type, self.takes.get(index, PLAIN))

    def output_type(self, index: int) -> TensorType:
        """Type of the tensor that is passed for an output: its stored shape."""
        return stored_type(self.graph.nodes[index].type, self.gives.get(index, PLAIN))

    def constant(self, index: int) -> np.ndarray:
        """The value of a constant node (do not write to it)."""
        return self.model.constant(index)


class Toolchain(ABC):
    """What can compile and run a sub-graph. Instances of this class hold no state."""

    name: str
    licence: str = ""
    native: bool = False
    """True: compiled by TVM itself through ``lower``; False: an external runtime module."""
    targets: tuple[str, ...] = ("cpu",)
    """Kinds of devices it compiles for: cpu, cuda."""
    capturable: bool = True
    """On CUDA: its calls only enqueue, so that they can be part of a CUDA graph."""
    whole_model: bool = True
    """Whether a user could run a whole model with it (then it is a baseline)."""
    direct_convolutions: bool = False
    """True when it never convolves by Winograd's method or a transform: its lower bounds are
    tighter then."""
    careful: bool = False
    """Its reduced instances can leave products of a partition in float32
    (``records.precision.careful``)."""

    conflicts: tuple[str, ...] = ()
    """Toolchains whose runtime cannot share a process with this one's."""

    @abstractmethod
    def probe(self) -> ToolchainState:
        """Look whether it can be used here. Called in a child process; may crash it."""

    @abstractmethod
    def instances(self, threads: int, precision: str) -> tuple[ToolchainInstance, ...]:
        """Configurations to offer side by side, the default first.

        ``precision`` is the lowest that the run admits. The float32 ones are offered whatever it
        is; with ``bfloat16`` come, where the toolchain can, instances that compute in it inside
        partitions whose inputs and outputs stay float32 (``records.precision.in_bfloat16``).
        """

    def formats(self, instance: ToolchainInstance) -> tuple[str, ...]:
        """Formats its partitions can take and give at their borders, plain among them.

        A candidate whose border it cannot serve in a format it is refused like any other: with
        an ``UnsupportedError`` when it is compiled.
        """
        return (PLAIN,)

    def cuda_instances(self, architecture: str, precision: str) -> tuple[ToolchainInstance, ...]:
        """As ``instances``, for the device cuda:0 of this architecture; empty: not for CUDA."""
        return ()

    @abstractmethod
    def supports(
        self, graph: DataflowGraph, index: NodeIndex, instance: ToolchainInstance
    ) -> str | None:
        """None when it can run this call; else the reason, a short phrase that names the cause."""

    @abstractmethod
    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionSpec:
        """The rule tree that proposes its candidates."""

    def made_of(
        self, graph: DataflowGraph, instance: ToolchainInstance, nodes: NodeSet
    ) -> tuple[tuple[str, tuple[OperatorNumber, ...]], ...] | None:
        """Composites (name, operator numbers) it makes of a set of calls that it supports.

        None: the set is no candidate of this instance. Empty: the rules' composites stand.
        """
        return ()

    def library_table(self) -> Sequence[PatternEntry]:
        """Composites it runs as one call inside another toolchain's kernels; empty: no library."""
        return ()

    def library_call(self, function: Function) -> Any:
        """A composite of the table as a runtime module, for kernels of ``function.instance``."""
        raise NotImplementedError(f"{self.name} is no library")

    def library_instances(
        self, threads: int, libraries: Sequence[str]
    ) -> tuple[ToolchainInstance, ...]:
        """Instances whose kernels call a library: a toolchain of this name, as option library."""
        return ()

    def make_ready(
        self,
        graph: DataflowGraph,
        instance: ToolchainInstance,
        sets: Sequence[NodeSet],
        now: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        """Compile what these candidates (sets of calls) share, before any is compiled alone.

        ``now`` is told what is being done; returns soon after ``stop`` says so. ``ToolchainError``
        when it cannot be compiled. Most toolchains share nothing.
        """
        return

    @abstractmethod
    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """What an exported artifact must carry to run its partitions."""

    def libraries_for(self, functions: Sequence[Function]) -> tuple[RuntimeLibrary, ...]:
        """As ``runtime_libraries``, for an artifact with these compiled functions of it."""
        return self.runtime_libraries()

    def compile(self, function: Function) -> Any:
        """An external toolchain's runtime module (``tvm_ffi.Module``) with ``function.symbol``.

        Serialisable and self-contained: weights bound, no second copy of them. Raises
        ``ToolchainError`` with the reason when it cannot take the function.
        """
        raise NotImplementedError(f"{self.name} is native")

    def lower(self, function: Function) -> Any:
        """A native toolchain's ``IRModule``: scheduled PrimFuncs and a Relax function ``main``.

        ``main`` takes ``function.inputs`` and returns the output, or a tuple of them; its single
        dataflow block calls PrimFuncs by ``call_tir`` with packed weights as constants, so that
        it can be inlined into a whole model. Runtime modules that it calls by ``call_dps_packed``
        are in the attribute ``MODULES``.
        """
        raise NotImplementedError(f"{self.name} is external")

    def tuner(self) -> Any | None:
        """What searches for better kernels (see ``tvm/tuning/tuner.py``), or None."""
        return None

    def environment(self, threads: int, spin: bool) -> dict[str, str]:
        """Environment variables its libraries read when they load."""
        return {}

    def inside(self, module: Any) -> dict[str, Any]:
        """What is known of a compiled module: plan steps, algorithms, layouts (for the faces)."""
        return {}

    def source_hash(self) -> str:
        """Hash of the toolchain's own sources: part of a measurement's key."""
        from collage_engine.toolchains.registry import folder_hash

        return folder_hash(type(self))
