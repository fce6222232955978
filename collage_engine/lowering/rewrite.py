"""A whole cover of the graph as one module: ``main`` calls the partitions in order.

External partitions become ``call_dps_packed`` to their symbol, their runtime modules hang on the
module as ``RunCodegen`` leaves them (attribute ``external_mods``). What a toolchain lowered to TIR
is inlined, so TVM's memory planning sees every value. Where a partition wants a value in another
format than its producer leaves it in, a conversion stands before it, once per value and format.
Structurally equal PrimFuncs are kept once (the block builder does that), equal constants too (the
executable builder does).

In a module for a device a partition on the host is an executable of its own, which
``toolchains.runtime.host`` runs between two stretches of the device's work, with copies around it.
There a value on the host is a byte on the device that stands for it: it keeps the order of the
calls, and TVM's memory planning and CUDA graphs see nothing that is not on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collage_engine.lowering.built import Kernel
from collage_engine.lowering.emit import CompiledParts, LoweredParts
from collage_engine.lowering.extract import relax_type
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.format import HOST, PLAIN, stored_type
from collage_engine.records.graph import TensorType, members
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.registry import format_converter
from collage_engine.toolchains.runtime.host import PREFIX, module_of

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel


class HostSide:
    """What is on the host in a module that is being assembled."""

    def __init__(self, builder: Any, graph: DataflowGraph) -> None:
        self._builder = builder
        self._graph = graph
        self._numbers: dict[int, int] = {}
        """Values by value index."""
        self._parts: list[tuple[list[int], list[int]]] = []
        self._executables: list[Any] = []

    def _number(self, index: int) -> int:
        return self._numbers.setdefault(index, len(self._numbers))

    def _call(self, verb: str, number: int, arguments: tuple[Any, ...], kind: Any) -> Any:
        from tvm import relax

        symbol = f"{PREFIX}.{verb}.{number}"
        return self._builder.emit(relax.op.call_dps_packed(symbol, arguments, kind))

    def take(self, index: int, value: Any) -> Any:
        """Return what stands for a device's value on the host, once it is copied there."""
        return self._call("take", self._number(index), (value,), _stand_in())

    def give(self, index: int, stand_in: Any) -> Any:
        """Return a host's value, copied to the device."""
        kind = relax_type(self._graph.values[index].type)
        return self._call("give", self._number(index), (stand_in,), kind)

    def run(self, function: Function, stand_ins: list[Any]) -> tuple[Any, str]:
        """Run a partition on the host; what stands for all of its outputs, and the call's name."""
        number = len(self._parts)
        inputs = [self._number(index) for index in function.inputs]
        self._parts.append((inputs, [self._number(index) for index in function.outputs]))
        self._executables.append(executable_of(function, f"part{number}"))
        result = self._call("run", number, tuple(stand_ins), _stand_in())
        return result, f"{PREFIX}.run.{number}"

    def module(self) -> Any:
        """Return the runtime module that the calls go to."""
        values = [self._graph.values[index].type for index in self._numbers]
        return module_of(values, self._parts, self._executables)


def _stand_in() -> Any:
    return relax_type(TensorType((1,), "int8"))


def executable_of(function: Function, name: str) -> Any:
    """Return a partition compiled for the host, as an executable of TVM's virtual machine.

    Args:
        function: The partition.
        name: What its function is called inside the executable.
    """
    from tvm import relax
    from tvm.ir import Tuple

    from collage_engine.kernels.stack_buffers import PIPELINE
    from collage_engine.lowering.virtual_machine import build_target, use_threads

    builder = relax.BlockBuilder()
    params = [relax.Var(f"v{i}", relax_type(function.input_type(i))) for i in function.inputs]
    # All executables end up in one library: names must differ.
    compiled = CompiledParts(builder, prefix=f"{function.symbol}_")
    with builder.function(name, params):
        with builder.dataflow():
            results = compiled.call(0, function, list(params))
            result = builder.emit_output(results[0] if len(results) == 1 else Tuple(results))
        builder.emit_func_output(result)
    use_threads(function.instance.threads)
    # A device's module may be run in this process and exported, which only TVM's own way bears.
    return relax.build(compiled.module(), build_target(), tir_pipeline=PIPELINE).mod


class ValuesAtHand:
    """Relax variables by value and format; a missing format is computed once, when first wanted.

    Conversions are TIR kernels of the toolchain that writes such, whatever the toolchains of the
    placement are: TVM runs the placement in any case.
    """

    def __init__(self, builder: Any, graph: DataflowGraph, threads: int, host: HostSide) -> None:
        """Start without any value.

        Args:
            builder: Relax's block builder of the module.
            graph: The dataflow graph whose values are handed on.
            threads: Threads of the conversions' kernels.
            host: Copies between the device and the host, in a module for a device.
        """
        self._host = host
        self._writer = format_converter()
        self._builder = builder
        self._graph = graph
        self._threads = threads
        self._values: dict[int, dict[str, Any]] = {}
        self._kernels: dict[tuple[TensorType, str, str], Any] = {}

    def put(self, index: int, value: Any, name: str = PLAIN) -> None:
        """Record the variable that holds a value in a format."""
        self._values.setdefault(index, {})[name] = value

    def get(self, index: int, name: str) -> Any:
        """Return the variable of a value in a format, which is computed when it is first wanted.

        Args:
            index: The index of the value, which was put before in some format.
            name: The format.
        """
        from tvm import relax

        names = self._values[index]
        # Only plain values are copied.
        if name == HOST and HOST not in names:
            names[HOST] = self._host.take(index, self.get(index, PLAIN))
        elif name != HOST and set(names) == {HOST}:
            names[PLAIN] = self._host.give(index, names[HOST])
        if name not in names:
            source, value = next((n, v) for n, v in names.items() if n != HOST)
            kind = self._graph.values[index].type
            kernel = self._kernel(kind, source, name)
            names[name] = self._builder.emit(
                relax.call_tir(kernel, (value,), relax_type(stored_type(kind, name)))
            )
        return names[name]

    def _kernel(self, kind: TensorType, source: str, target: str) -> Any:
        """Return the global variable of a conversion, added to the module when first used."""
        key = (kind, source, target)
        if key not in self._kernels:
            function = self._writer.conversion(kind, source, target, self._threads)
            name = conversion_name(source, target)
            # Its mark keeps it apart from an equal kernel of a partition, which has another name:
            # profiles tell by name what belongs to no partition.
            marked = function.with_attr("collage.conversion", name)
            self._kernels[key] = self._builder.add_func(marked, name)
        return self._kernels[key]


def conversion_name(source: str, target: str) -> str:
    """Return what conversions are called in a built module; a number follows where needed."""
    return f"convert_{source}_to_{target}"


def assemble(
    model: ImportedModel, partitions: Sequence[Function], lowered: LoweredParts | None = None
) -> CompiledParts:
    """Compile every partition and join them under ``main``.

    Args:
        model: The imported model.
        partitions: Functions that hold every operator exactly once, in an order in which they can
            run (``execution_order``).
        lowered: What partitions of earlier covers were lowered to; None: there are none.

    Returns:
        The partitions with their module. Its ``main`` takes every graph input in file order, unused
        ones too, and returns one tensor, or a tuple in output order.

    Raises:
        ToolchainError: A toolchain refuses one of the partitions.
    """
    from tvm import relax
    from tvm.ir import Tuple

    graph = model.graph
    builder = relax.BlockBuilder()
    params = []
    on_device = any(function.instance.architecture for function in partitions)
    host = HostSide(builder, graph)
    at_hand = ValuesAtHand(
        builder,
        graph,
        max((f.instance.threads for f in partitions), default=1),
        host,
    )
    for index, (name, _) in zip(graph.record.inputs, model.inputs, strict=True):
        parameter = relax.Var(name, relax_type(graph.values[index].type))
        at_hand.put(index, parameter)
        params.append(parameter)

    compiled = CompiledParts(builder, lowered=lowered)
    with builder.function("main", params):
        with builder.dataflow():
            for position, function in enumerate(partitions):
                if on_device and not function.instance.architecture:
                    stand_ins = [at_hand.get(index, HOST) for index in function.inputs]
                    result, name = host.run(function, stand_ins)
                    compiled.calls.append(Kernel(name=name, part=position))
                    for index in function.outputs:
                        at_hand.put(index, result, HOST)
                    continue
                arguments = [
                    at_hand.get(index, function.takes.get(index, PLAIN))
                    for index in function.inputs
                ]
                results = compiled.call(position, function, arguments)
                for output, result in zip(function.outputs, results, strict=True):
                    at_hand.put(output, result, function.gives.get(output, PLAIN))
            leaving = []
            for index in graph.record.outputs:
                leaves = graph.values[index]
                if leaves.constant:
                    at_hand.put(index, relax.const(model.constant(index), leaves.type.dtype))
                leaving.append(at_hand.get(index, PLAIN))
            result = builder.emit_output(leaving[0] if len(leaving) == 1 else Tuple(leaving))
        builder.emit_func_output(result)
    if on_device and not all(f.instance.architecture for f in partitions):
        compiled.externals.append(host.module())
    return compiled


def execution_order(partitions: Sequence[Function]) -> tuple[int, ...]:
    """Return the positions of the partitions in an order in which they can run.

    Values are made before they are read. Of those that could be next the one with the earliest
    operator is.

    Raises:
        ToolchainError: Partitions wait for each other; the sentence names them.
    """
    import networkx

    maker = {
        index: position
        for position, function in enumerate(partitions)
        for index in function.outputs
    }
    waits = networkx.DiGraph()
    waits.add_nodes_from(range(len(partitions)))
    waits.add_edges_from(
        (maker[index], position)
        for position, function in enumerate(partitions)
        for index in function.inputs
        if maker.get(index, position) != position
    )
    first = [next(iter(members(function.nodes)), 0) for function in partitions]
    try:
        return tuple(networkx.lexicographical_topological_sort(waits, lambda p: first[p]))
    except networkx.NetworkXUnfeasible as error:
        names = [partitions[position].symbol for position, _ in networkx.find_cycle(waits)]
        circle = " → ".join([*names, names[0]])
        raise ToolchainError(f"partitions wait for each other: {circle}") from error
