"""Values of a whole model in the formats in which they are at hand, converted where wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.format import HOST, PLAIN, stored_type
from collage_engine.records.graph import TensorType
from collage_engine.toolchains.registry import format_converter

if TYPE_CHECKING:
    from collage_engine.lowering.host import HostSide


class ValuesAtHand:
    """Relax variables by value and format; a missing format is computed once, when first wanted.

    Conversions are TIR kernels of the toolchain that writes such, whatever the toolchains of the
    placement are: TVM runs the placement in any case.
    """

    def __init__(
        self,
        builder: Any,
        graph: DataflowGraph,
        threads: int,
        host: HostSide | None = None,
    ) -> None:
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

    def knows(self, index: int) -> bool:
        """Tell whether a value is at hand in any format."""
        return index in self._values

    def get(self, index: int, name: str) -> Any:
        """Return the variable of a value in a format, which is computed when it is first wanted.

        Args:
            index: The index of the value, which was put before in some format.
            name: The format.
        """
        from tvm import relax

        from collage_engine.lowering.extract import relax_type

        names = self._values[index]
        if name not in names and self._host is not None and HOST in (name, *names):
            # Only plain values are copied.
            if name == HOST:
                names[HOST] = self._host.take(index, self.get(index, PLAIN))
            elif PLAIN not in names and set(names) == {HOST}:
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
