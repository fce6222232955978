"""Defines the small core of the contract between the engine and a toolchain.

A toolchain is asked, in this order: what it is (``about``), whether it is here (``probe``), which
instances it has (``instances``), whether it can run an operator (``supports``), which sub-graphs it
proposes (``partition_spec``), to compile one (``compile``), and what an exported artifact must
carry (``runtime_libraries``). Only ``probe``, ``compile`` and ``runtime_libraries`` may import TVM
or load the toolchain's library; ``probe`` runs in a child process. Whatever else a toolchain can do
is an optional capability (``toolchains.capabilities``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members
from collage_engine.records.errors import ToolchainError
from collage_engine.records.format import PLAIN, stored_type
from collage_engine.records.graph import TensorType
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.precision import full_places
from collage_engine.records.toolchain import (
    RuntimeLibrary,
    Target,
    ToolchainAbout,
    ToolchainInstance,
    ToolchainState,
)

if TYPE_CHECKING:
    import numpy as np

    from collage_engine.model.importer import ImportedModel
    from collage_engine.partition.spec import PartitionSpec


MODULES = "external_mods"
"""Attribute of an ``IRModule``: runtime modules that come with it, as TVM's pass ``RunCodegen``
leaves it."""


@dataclass(frozen=True)
class Function:
    """A sub-graph taken out of its model, ready to be compiled.

    ``nodes`` is a closed index set (calls, the constants they read, tuples, projections);
    ``inputs`` and ``outputs`` are the tensor values it takes and gives, in argument order.
    The compiled function is called as ``symbol(*inputs, *outputs)``, outputs allocated by the
    caller, unless it ``returns`` them. All are plain row-major tensors, except that a value in
    ``takes`` or ``gives`` is a tensor of its *stored* shape in that format (``records.format``);
    operators keep meaning the logical axes. Constants are plain.
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
    def returns(self) -> bool:
        """Whether it is called as ``symbol(*inputs)`` and returns its outputs (one, or an array).

        It is where the size of an output depends on the data.
        """
        return any(self.graph.nodes[index].type.is_open for index in self.outputs)

    @property
    def members(self) -> tuple[NodeIndex, ...]:
        """Return the graph indices of its nodes, ascending."""
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
        """Return the value of a constant node, which must not be written to."""
        return self.model.constant(index)


class Toolchain(ABC):
    """What can compile and run a sub-graph. Instances of this class hold no state.

    The class attribute ``depends`` may name modules and packages of the engine outside the
    toolchain's own folder that decide what it compiles: they are part of its source hash.
    """

    about: ToolchainAbout
    depends: tuple[str, ...] = ()
    reads_weight_files: bool = False
    """Whether its modules read large weights from files beside them instead of holding them."""

    @property
    def name(self) -> str:
        """Return what users type and documents hold: ``about.name``."""
        return self.about.name

    @abstractmethod
    def probe(self) -> ToolchainState:
        """Look whether it can be used here.

        It is called in a child process, which it may crash. What ``about`` says need not be
        repeated in the state: the registry adds it.
        """

    @abstractmethod
    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        """Return the configurations that take part side by side for a target, the default first.

        Args:
            target: What the run compiles for; its kind is one of ``about.targets``.
            precision: The lowest that the run admits (``records.precision``). The float32
                instances take part whatever it is; with a lower one come, where the toolchain
                can, instances that compute in it inside partitions whose inputs and outputs stay
                float32.
        """

    @abstractmethod
    def supports(
        self, graph: DataflowGraph, index: NodeIndex, instance: ToolchainInstance
    ) -> str | None:
        """None when it can run this call; else the reason, a short phrase that names the cause."""

    @abstractmethod
    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionSpec:
        """Return the rule tree that proposes its candidates."""

    def compile(self, function: Function) -> Any:
        """Return a runtime module (``tvm_ffi.Module``) that has ``function.symbol``.

        It is serialisable and self-contained: the weights are bound, without a second copy.
        A toolchain that lowers to TIR (``capabilities.LowersToTir``) has no module of its own.

        Raises:
            ToolchainError: It cannot take the function; the text says why.
        """
        raise ToolchainError(f"{self.name} compiles no runtime module of its own")

    @abstractmethod
    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return what an exported artifact must carry to run its partitions.

        Raises:
            ToolchainError: A library is not here; the text names the package to install.
        """
