"""A whole cover of the graph as one module: ``main`` calls the partitions in order.

External partitions become ``call_dps_packed`` to their symbol, their runtime modules hang on the
module as ``RunCodegen`` leaves them (attribute ``external_mods``). What a toolchain lowered to TIR
is inlined, so TVM's memory planning sees every value. Where a partition wants a value in another
format than its producer leaves it in, a conversion stands before it, once per value and format.
Structurally equal PrimFuncs are kept once (the block builder does that), equal constants too (the
executable builder does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.lowering.convert import ValuesAtHand
from collage_engine.lowering.emit import CompiledParts, KernelCall, LoweredParts
from collage_engine.lowering.extract import relax_type
from collage_engine.lowering.host import HostSide
from collage_engine.records.format import HOST, PLAIN
from collage_engine.records.graph import members
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.weight_files import files_of

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel


@dataclass(frozen=True)
class Assembled:
    """A cover as one module, with what later profiling needs to know its calls by."""

    module: Any
    calls: tuple[KernelCall, ...]
    weight_files: tuple[Path, ...] = ()
    """Files of weights that runtime modules in it read."""


def assemble(
    model: ImportedModel, partitions: Sequence[Function], lowered: LoweredParts | None = None
) -> Assembled:
    """Compile every partition and join them under ``main``.

    Args:
        model: The imported model.
        partitions: Functions that hold every operator exactly once, in any order.
        lowered: What partitions of earlier covers were lowered to; None: there are none.

    Returns:
        The module. ``main`` takes every graph input in file order, unused ones too, and returns
        one tensor, or a tuple in output order.

    Raises:
        ToolchainError: When the partitions hang in a cycle, or a toolchain refuses one of them.
    """
    from tvm import relax
    from tvm.ir import Tuple

    order = execution_order(partitions)
    graph = model.graph
    builder = relax.BlockBuilder()
    params = []
    on_device = any(function.instance.architecture for function in partitions)
    host = HostSide(builder, graph) if on_device else None
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
    for position in order:
        # On the host of a device it is compiled when its turn comes, as an executable of its own.
        if host is None or partitions[position].instance.architecture:
            compiled.add(position, partitions[position])

    calls: list[KernelCall] = []
    with builder.function("main", params):
        with builder.dataflow():
            for position in order:
                function = partitions[position]
                if host is not None and not function.instance.architecture:
                    stand_ins = [at_hand.get(index, HOST) for index in function.inputs]
                    result, name = host.run(function, stand_ins)
                    calls.append(KernelCall(name, position))
                    for index in function.outputs:
                        at_hand.put(index, result, HOST)
                    continue
                arguments = [
                    at_hand.get(index, function.takes.get(index, PLAIN))
                    for index in function.inputs
                ]
                results = compiled.call(position, function, arguments, calls)
                for output, result in zip(function.outputs, results, strict=True):
                    at_hand.put(output, result, function.gives.get(output, PLAIN))
            leaving = []
            for index in graph.record.outputs:
                leaves = graph.values[index]
                if leaves.constant and not at_hand.knows(index):
                    at_hand.put(index, relax.const(model.constant(index), leaves.type.dtype))
                leaving.append(at_hand.get(index, PLAIN))
            result = builder.emit_output(leaving[0] if len(leaving) == 1 else Tuple(leaving))
        builder.emit_func_output(result)
    if any(not f.instance.architecture for f in partitions) and host is not None:
        compiled.externals.append(host.module())
    module = compiled.module()
    files = dict.fromkeys(file for external in compiled.externals for file in files_of(external))
    return Assembled(module, tuple(calls), tuple(files))


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
