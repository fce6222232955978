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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.format import PLAIN, stored_type
from collage_engine.records.graph import (
    OperatorNumber,
    OperatorSet,
    TensorType,
    ValueIndex,
    members,
)
from collage_engine.records.precision import float32_nodes
from collage_engine.records.toolchain import (
    RuntimeLibrary,
    Target,
    ToolchainAbout,
    ToolchainInstance,
    ToolchainState,
)
from collage_engine.support.errors import ToolchainError

if TYPE_CHECKING:
    import numpy as np

    from collage_engine.model.importer import ImportedModel
    from collage_engine.partition.rules import PartitionRule


MODULES = "external_mods"
"""Attribute of an ``IRModule``: runtime modules that come with it, as TVM's pass ``RunCodegen``
leaves it."""
KERNEL_NODES = "collage.kernel_nodes"
"""Attribute of a lowered ``IRModule``, as JSON: for each call of ``main`` in order the name of what
it calls, and the operators that this computes or helps to, ascending."""


@dataclass(frozen=True)
class Function:
    """A sub-graph taken out of its model, ready to be compiled.

    ``nodes`` is a set of operators; ``inputs`` and ``outputs`` are the values that it takes and
    gives, in argument order.
    The compiled function is called as ``symbol(*inputs, *outputs)``, outputs allocated by the
    caller, unless it ``returns`` them. All are plain row-major tensors, except that a value in
    ``takes`` or ``gives`` is a tensor of its *stored* shape in that format (``records.format``);
    operators keep meaning the logical axes. Constants are plain.
    """

    symbol: str
    model: ImportedModel
    graph: DataflowGraph
    nodes: OperatorSet
    inputs: tuple[ValueIndex, ...]
    outputs: tuple[ValueIndex, ...]
    instance: ToolchainInstance
    spin: bool = False
    """Whether the runtime's threads may spin between calls, which is a property of the
    placement."""
    takes: Mapping[int, str] = field(default_factory=dict, hash=False)
    """The format (``records.format``) of each input that is not plain, by value index."""
    gives: Mapping[int, str] = field(default_factory=dict, hash=False)
    """The format (``records.format``) of each output that is not plain, by value index."""
    notes: list[str] = field(default_factory=list, hash=False, compare=False)
    """Takes sentences on how it was compiled, of which a user of the module should know."""
    weights: list[bytes] = field(default_factory=list, hash=False, compare=False)
    """Takes the large weights that the module holds as they are; empty: the constants."""
    only_saved: bool = False
    """Whether its module is only saved here and called in another process, which compiles it
    anyway; ``compile`` may then leave that to it."""

    @property
    def returns(self) -> bool:
        """Tells whether the function is called as ``symbol(*inputs)`` and returns its outputs.

        It does where the size of an output depends on the data; it then returns one tensor, or an
        array of them.
        """
        return any(self.graph.values[index].type.is_open for index in self.outputs)

    @property
    def members(self) -> tuple[OperatorNumber, ...]:
        """Return the function's operators, ascending."""
        return tuple(members(self.nodes))

    @cached_property
    def constants(self) -> tuple[ValueIndex, ...]:
        """Return the constants that the function reads, ascending."""
        return self.graph.constants_of(self.nodes)

    @property
    def left_full(self) -> frozenset[int]:
        """Return the operators whose products the instance leaves in float32."""
        places = float32_nodes(self.instance)
        if not places:
            return frozenset()
        calls = self.members
        return frozenset(calls[index] for index in places if index < len(calls))

    def input_type(self, index: int) -> TensorType:
        """Return the type of the tensor that is passed for an input, with its stored shape."""
        return stored_type(self.graph.values[index].type, self.takes.get(index, PLAIN))

    def output_type(self, index: int) -> TensorType:
        """Return the type of the tensor that is passed for an output, with its stored shape."""
        return stored_type(self.graph.values[index].type, self.gives.get(index, PLAIN))

    def constant(self, index: int) -> np.ndarray:
        """Return the numbers of a constant as an array, which must not be written to."""
        return self.model.constant(index)


class Toolchain(ABC):
    """A toolchain compiles and runs sub-graphs; an instance of this class holds no state.

    The class attribute ``depends`` may name modules and packages of the engine outside the
    toolchain's own folder that decide what it compiles: they are part of its source hash.
    """

    about: ToolchainAbout
    depends: tuple[str, ...] = ()
    swallowing: frozenset[str] = frozenset()
    """Operators that may give a number where the standard gives NaN."""
    reads_weight_files: bool = False
    """Whether the toolchain's modules read large weights from files beside them
    (``runtime/weight_files.py``) instead of holding them."""

    @property
    def name(self) -> str:
        """Returns the name that users type and documents hold: ``about.name``."""
        return self.about.name

    @abstractmethod
    def probe(self) -> ToolchainState:
        """Find out whether the toolchain can be used on this machine.

        It is called in a child process, which it may crash. What ``about`` says need not be
        repeated in the state: the registry adds it.

        Returns:
            The toolchain's version, or the reason why it is not available.
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
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> str | None:
        """Tells whether the toolchain can run one call of the graph.

        It is asked for every call of every model, so it must look at the graph only and load
        nothing.

        Args:
            graph: The model's dataflow graph.
            index: The operator.
            instance: The instance that is to run it.

        Returns:
            None when it can; else the reason, a short phrase that names the cause and that users
            read.
        """

    @abstractmethod
    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionRule:
        """Return the rules that propose the toolchain's candidates.

        Args:
            instance: The instance that is to run the candidates.
            graph: The model's dataflow graph.
        """

    def compile(self, function: Function) -> Any:
        """Compiles a function to a runtime module (``tvm_ffi.Module``) with ``function.symbol``.

        The module is serialisable and self-contained: the weights are bound, without a second copy.
        A toolchain that lowers to TIR (``capabilities.LowersToTir``) has no module of its own.

        Raises:
            ToolchainError: The toolchain cannot take the function; the text says why.
        """
        raise ToolchainError(f"{self.name} compiles no runtime module of its own")

    @abstractmethod
    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that an exported artifact must carry to run these partitions.

        Raises:
            ToolchainError: A library is not here; the text names the package to install.
        """

    # What a toolchain may answer otherwise than most

    def formats(self, instance: ToolchainInstance) -> tuple[str, ...]:
        """Return the formats (``records.format``) at the borders of partitions, plain among them.

        A candidate whose border the toolchain cannot serve in a format is refused when it is
        compiled.
        """
        return (PLAIN,)

    def takes_set(
        self, graph: DataflowGraph, instance: ToolchainInstance, nodes: OperatorSet
    ) -> bool:
        """Tell whether a set of calls, each of which it supports, is a candidate of an instance."""
        return True

    def rounds(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> bool:
        """Tell whether an instance in reduced precision would round a product's operands.

        Args:
            graph: The dataflow graph.
            index: The product, a node of it (``records.precision.PRODUCTS``).
            instance: The instance.
        """
        return True

    def swallows_nan(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> bool:
        """Tell whether a call may give a number where the standard gives NaN.

        Args:
            graph: The dataflow graph.
            index: The call, a node of it that the toolchain supports.
            instance: The instance that runs it.
        """
        return graph.nodes[index].op in self.swallowing

    def precompile(
        self,
        graph: DataflowGraph,
        instance: ToolchainInstance,
        sets: Sequence[OperatorSet],
        now: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        """Compile what candidates share and what takes long, before any is compiled alone.

        Args:
            graph: The model's graph.
            instance: The instance whose candidates they are.
            sets: The candidates, as sets of calls.
            now: Is called with what is being compiled.
            stop: Says when to return soon, with the work undone.

        Raises:
            ToolchainError: The shared part cannot be compiled.
        """
        return  # most share nothing

    def libraries_for(self, functions: Sequence[Function]) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries for an artifact that holds these compiled functions."""
        return self.runtime_libraries()

    def inside(self, module: Any) -> dict[str, Any]:
        """Return what is inside a compiled or lowered module.

        Returns:
            Plan steps, algorithms, layouts and the like, as JSON values.
        """
        return {}
