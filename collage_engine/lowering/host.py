"""Puts partitions on the host within a module for a device, with the copies around them.

A partition on the host is an executable of its own, which ``toolchains.runtime.host`` runs
between two stretches of the device's work. In the whole module a value on the host is a byte
on the device that stands for it: it keeps the order of the calls, and TVM's memory planning and
CUDA graphs see nothing that is not on the device.
"""

from __future__ import annotations

from typing import Any

from collage_engine.lowering.emit import CompiledParts
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import TensorType
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.host import PREFIX, module_of


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
        from collage_engine.lowering.extract import relax_type

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
    from collage_engine.lowering.extract import relax_type

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
    from collage_engine.lowering.extract import relax_type
    from collage_engine.lowering.virtual_machine import build_target, use_threads

    builder = relax.BlockBuilder()
    params = [relax.Var(f"v{i}", relax_type(function.input_type(i))) for i in function.inputs]
    # All executables end up in one library: names must differ.
    compiled = CompiledParts(builder, prefix=f"{function.symbol}_")
    compiled.add(0, function)
    with builder.function(name, params):
        with builder.dataflow():
            results = compiled.call(0, function, list(params), [])
            result = builder.emit_output(results[0] if len(results) == 1 else Tuple(results))
        builder.emit_func_output(result)
    use_threads(function.instance.threads)
    # A device's module may be run in this process and exported, which only TVM's own way bears.
    return relax.build(compiled.module(), build_target(), tir_pipeline=PIPELINE).mod
