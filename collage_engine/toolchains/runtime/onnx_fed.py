"""Implements what toolchains share that are given sub-graphs as ONNX.

``OnnxFedToolchain`` cuts a partition out of the cleaned ONNX model, says which calls can be taken,
proposes candidates and names the library's version; what is left to a toolchain is running an ONNX
model. One that runs it from Python derives from ``OnnxSessionToolchain`` and needs no C++ of its
own.
"""

from __future__ import annotations

import contextlib
import logging
import math
from abc import abstractmethod
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.whole_numbers import WholeNumbers, is_whole, most
from collage_engine.partition.quantized import pattern_table
from collage_engine.partition.rules import PartitionRule, composite_rules
from collage_engine.records.graph import Node, OperatorNumber, ValueIndex
from collage_engine.records.operators import onnx_type
from collage_engine.records.toolchain import RuntimeLibrary, ToolchainInstance
from collage_engine.support.errors import ToolchainError, UnsupportedError, fault_reason
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime import python_host
from collage_engine.toolchains.runtime.builder import RuntimeSource, wheel_version
from collage_engine.toolchains.runtime.toolchain import CppToolchain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import ModelProto, NodeProto

_LOG = logging.getLogger(__name__)

ARRAY_TYPES = frozenset(
    (
        *("bool", "float16", "float32", "float64"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
)
"""Element types that NumPy has too."""
LEAST_BOUND = 4096
"""The whole numbers in masks and lengths that a library must be right about at least; chosen: as
long as the texts and signals that models are given."""
_FOLDER = Path(__file__).resolve().parent


class OnnxFedToolchain(CppToolchain):
    """The base of toolchains that are given each partition as an ONNX model."""

    packages: tuple[str, ...] = ()
    """Distributions that carry the library; the first one that is installed tells the version."""
    types: frozenset[str] = ARRAY_TYPES
    """Element types of values that the library computes."""
    operators: frozenset[str] = frozenset()
    """ONNX types of the operators that the library computes, for example ``Conv``; empty: all."""
    returns_open_values: bool = False
    """Whether the library returns values whose size depends on the data."""
    depends = (
        "collage_engine.model.onnx_slice",
        "collage_engine.model.own_file",
    )

    def package(self) -> str:
        """Return the distribution that carries the library here.

        Raises:
            ToolchainError: None of ``packages`` is installed; the text names them.
        """
        for package in self.packages:
            with contextlib.suppress(ToolchainError):
                wheel_version(package)
                return package
        raise ToolchainError(f"the package {' or '.join(self.packages)} is not installed")

    def version(self) -> str:
        """Return the version of the library that is installed here."""
        return wheel_version(self.package())

    def supports(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> str | None:
        """Implement ``Toolchain.supports`` by the class's tables of types and operators."""
        node = graph.nodes[index]
        title = self.about.title
        if not self.returns_open_values and any(value.is_open for value in node.types):
            return f"{title} returns no values whose size depends on the data"
        if self.operators and onnx_type(node.op) not in self.operators:
            return f"{title} computes no {onnx_type(node.op)}"
        for kind in (*node.types, *(graph.values[i].type for i in node.inputs)):
            if kind.dtype not in self.types:
                return f"{title} computes no {kind.dtype}"
        numbers, bounds = _bounds(self, graph)
        return self.inexact(numbers, node, bounds)

    def inexact(self, numbers: WholeNumbers, node: Node, bounds: Sequence[float]) -> str | None:
        """Return why the library does not compute an operator exactly on whole numbers so large.

        Args:
            numbers: The whole numbers of the graph.
            node: The operator.
            bounds: How large they can be; see ``WholeNumbers.bounds``.

        Returns:
            The reason, for ``supports``; None where it computes exactly, or floats.
        """
        return None

    def largest_inputs(self, function: Function) -> list[int]:
        """Return the magnitude of the whole numbers that each input of a function may hold.

        The runtime must refuse larger ones, since the library would be wrong about them. It is 0
        where all that the type holds are admitted.
        """
        numbers, bounds = _bounds(self, function.graph)
        largest = []
        for index in function.inputs:
            value = function.graph.values[index]
            is_narrowed = value.producer is None and bounds[index] < most(value.type)
            is_index = numbers.index_limit[index] < math.inf
            largest.append(int(bounds[index]) if is_narrowed and not is_index else 0)
        return largest

    def swallows_nan(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> bool:
        """Implement ``Toolchain.swallows_nan`` by ONNX's types in the class's table."""
        node = graph.nodes[index]
        return (node.onnx_type or onnx_type(node.op)) in self.swallowing

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionRule:
        """Return the rules: quantised composites as they are.

        The rest comes from blocks, greedy partitions and the whole model, which suit a runtime
        best: a call has a price of its own, and inside a partition it keeps layouts that small ones
        convert to and fro. So there are no rules for anchors with parts of their epilogues, which
        would double the candidates and win nothing.
        """
        # They are whole, as in parts they are float32; runtimes make 8-bit kernels of whole ones.
        return composite_rules(self.name, pattern_table(self.name))

    def misreads(self, node: NodeProto, opset: int) -> bool:
        """Tell whether the library computes something else than a node of this opset says.

        A sub-graph that holds such a node is refused.
        """
        return False

    def onnx_of(self, function: Function) -> ModelProto:
        """Return a function as ONNX: a slice of the cleaned model.

        Its inputs and outputs are in the order of the function's. Large weights may lie in files
        (``model.onnx_external``).

        Raises:
            UnsupportedError: The library reads an operator wrongly; the text names it.
        """
        from collage_engine.model.onnx_expand import SOFTMAX_OF_ONE_AXIS
        from collage_engine.model.onnx_slice import slice_model

        sliced = slice_model(function.model, function.inputs, function.outputs)
        misread = self._misread(sliced, SOFTMAX_OF_ONE_AXIS)
        if misread is not None:
            raise UnsupportedError(f"{self.about.title} computes {misread} otherwise than ONNX")
        return sliced

    def _misread(self, model: ModelProto, least_opset: int = 0) -> str | None:
        """Return the type of a node that the library reads wrongly; None where there is none.

        Args:
            model: The model.
            least_opset: The operator set as whose nodes its own may be read.
        """
        from collage_engine.model.onnx_outer_values import with_branches

        opsets = [o.version for o in model.opset_import if not o.domain]
        nodes = chain(model.graph.node, *(function.node for function in model.functions))
        opset = max((*opsets, least_opset))
        wrong = (node.op_type for node in with_branches(nodes) if self.misreads(node, opset))
        return next(wrong, None)

    @abstractmethod
    def plan_of(self, function: Function, model: ModelProto) -> tuple[dict[str, Any], bytes]:
        """Return the plan and the weights of a function, given as ONNX; see ``plan``.

        Args:
            function: The function.
            model: It as ``onnx_of`` writes it, or the user's own file with the inputs' sizes set.
        """

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """Implement ``CppToolchain.plan``."""
        return self._planned(function, self.onnx_of(function))

    def _planned(self, function: Function, model: ModelProto) -> tuple[dict[str, Any], bytes]:
        """Return ``plan_of`` a model, whose weights the function takes."""
        function.weights[:] = (tensor.raw_data for tensor in model.graph.initializer)
        return self.plan_of(function, model)

    def compile(self, function: Function) -> Any:
        """Implement ``Toolchain.compile``; a whole model is compiled from the user's own file.

        It then takes the time that the library takes by itself. Where the library refuses the
        file, or reads it wrongly, the cleaned model stands in.
        """
        from collage_engine.model.own_file import original_model

        own = original_model(function.model, function.nodes, function.inputs, function.outputs)
        if own is not None and self._misread(own) is None:
            try:
                return self.finish(function, *self._planned(function, own))
            except ToolchainError as error:
                _LOG.info("%s takes the cleaned model, not the file: %s", self.name, error)
        return super().compile(function)


@lru_cache(maxsize=32)  # a process works on one model, or on a few of its shapes
def _bounds(toolchain: OnnxFedToolchain, graph: DataflowGraph) -> tuple[WholeNumbers, list[float]]:
    """Return the whole numbers of a graph, with bounds under which as much as can be is exact.

    Inputs that decide floats are masks and lengths, and are taken to be no larger than what is
    made of them allows; a runtime refuses larger ones (``largest_inputs``). Inputs of which whole
    numbers are computed may be as large as their type holds.
    """
    numbers = WholeNumbers(graph)
    parameters = [i for i in graph.record.inputs if is_whole(graph.values[i].type)]
    given: dict[ValueIndex, float] = {i: most(graph.values[i].type) for i in parameters}
    lowered = {i: given.pop(i) for i in parameters if numbers.decides_more[i]}
    bounds = numbers.fitted(
        lowered,
        lambda node, bounds: toolchain.inexact(numbers, node, bounds) is None,
        least=LEAST_BOUND,
        fixed=given,
    )
    return numbers, bounds


def serialised(model: ModelProto) -> bytes:
    """Return the bytes of a model, without its files.

    Raises:
        ToolchainError: It is more than one protobuf message may hold.
    """
    from google.protobuf.message import EncodeError

    try:
        packed: bytes = model.SerializeToString()
        return packed
    except EncodeError as error:
        raise ToolchainError(
            "the sub-graph has more than 2 GB as ONNX, which is the limit"
        ) from error


class OnnxSessionToolchain(OnnxFedToolchain):
    """The base of toolchains that run ONNX models from Python.

    A subclass says what it is (``about``, ``packages``), which values and operators it takes
    (``types``, ``operators``), and names ``session`` and ``module``. Its partitions run wherever
    Python does: an artifact with one runs from Python only, and says so.
    """

    session: Path
    """A Python file of the subclass with the function ``open_model(model, threads, options)``.

    It takes the bytes of an ONNX model, the number of threads that it may use and the instance's
    options by name; it returns a function that takes the inputs as a list of NumPy arrays, which
    must not be written to, and returns the outputs in the model's order. The file lies in artifacts
    too and must stand by itself: it imports the library, NumPy and the standard library only.
    """
    module: str
    """The Python module that ``session`` imports, which an artifact then requires."""

    def source(self) -> RuntimeSource:
        """Return the sources of the runtime that calls Python."""
        main = _FOLDER / "python_src" / "python_module.cc"
        return RuntimeSource(self.name, main)

    def plan_of(self, function: Function, model: ModelProto) -> tuple[dict[str, Any], bytes]:
        """Return the plan of a function, and its ONNX model."""
        from collage_engine.model.onnx_external import with_own_weights

        try:
            model = with_own_weights(model)
        except ValueError as error:
            raise ToolchainError(f"{self.name}: {error}") from error
        plan = {
            "library": f"{self.about.title} {self.version()}",
            "opener": python_host.opener_name(self.name),
            "options": dict(function.instance.config),
        }
        return plan, serialised(model)

    def check(self, kind: str) -> None:
        """Load the session's file, and the library with it."""
        _register(self.name, self.session)

    def create(self, symbol: str, plan: dict[str, Any], weights: bytes) -> Any:
        """Implement ``CppToolchain.create``."""
        _register(self.name, self.session)
        return super().create(symbol, plan, weights)

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the runtime, and the two Python files that it calls."""
        host = self.carried(
            Path(python_host.__file__), f"{python_host.PREFIX}{self.name}.py", "Apache-2.0"
        )
        host = msgspec.structs.replace(host, python=self.module)
        name = f"{self.name}{python_host.SESSION}"
        session = self.carried(self.session, name, self._licence_of_source())
        return host, session, self.own_library()


@cache
def _register(name: str, session: Path) -> None:
    """Make a toolchain's session known to the runtime modules of this process, once."""
    try:
        python_host.register(name, session)
    except Exception as error:
        raise ToolchainError(f"{session.name} cannot be run: {fault_reason(error)}") from error
