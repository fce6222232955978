"""Implements the part of the contract that every BLAS shares."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import anything, op
from collage_engine.partition.rule_trees import PatternEntry, byoc_rules
from collage_engine.partition.rules import Composites, PartitionRule
from collage_engine.records.graph import OperatorNumber, OperatorSet
from collage_engine.records.toolchain import RuntimeLibrary, ToolchainInstance
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.blas.product import CONVOLUTIONS, product_of, reason_against
from collage_engine.toolchains.runtime.builder import RuntimeSource, find_in_wheel, wheel_version
from collage_engine.toolchains.runtime.chains import against_match
from collage_engine.toolchains.runtime.toolchain import CppToolchain

PLAN_VERSION = 2
"""Of the plans that the BLAS toolchains' C++ reads; raised when they change."""


class BlasToolchain(CppToolchain):
    """One product a call: as a partition of its own, or as a library inside TVM's kernels.

    A subclass names its wheels; its C++ is ``src/<name>_module.cc``.
    """

    depends = ("collage_engine.partition.patterns",)
    package: str
    """The wheel that carries the library."""
    header: tuple[str, str, str]
    """Wheel, name and end of the folder of the library's header."""

    @abstractmethod
    def _libraries(self) -> tuple[Path, ...]:
        """Return the library, then those that it opens from its own folder.

        Raises:
            ToolchainError: The wheel is not installed, or carries no library.
        """

    def licence_of(self, name: str) -> str:
        """Return the licence of one of the libraries, by its file's name."""
        return self.about.licence

    def version(self) -> str:
        """Return the version of the library that is installed here."""
        return wheel_version(self.package)

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        libraries = self._libraries()
        return RuntimeSource(
            toolchain=self.name,
            main=Path(__file__).parent / "src" / f"{self.name}_module.cc",
            plan_version=PLAN_VERSION,
            library_version=self.version(),
            includes=(find_in_wheel(*self.header).parent,),
            links=libraries[:1],
            beside=tuple((file.name, file) for file in libraries),
        )

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that its runtime links, and the runtime itself."""
        libraries = (
            self.carried(file, licence=self.licence_of(file.name)) for file in self._libraries()
        )
        return (*libraries, self.own_library())

    def supports(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> str | None:
        """Implement ``Toolchain.supports``."""
        return reason_against(graph, index)

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionRule:
        """Implement ``Toolchain.partition_spec``."""
        return byoc_rules(self.library_table(), name=self.name)

    def composites_of(
        self, graph: DataflowGraph, instance: ToolchainInstance, nodes: OperatorSet
    ) -> Composites | None:
        """Refuses several products: each is a call, and a candidate, of its own."""
        return () if nodes.bit_count() == 1 else None

    def library_table(self) -> Sequence[PatternEntry]:
        """Implement ``capabilities.LibraryForKernels``."""
        product = op(("matmul", *CONVOLUTIONS), anything(), anything(), commutative=False)
        return [(f"{self.name}.product", product, against_match(reason_against))]

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """Return the plan and the weights of a function, for its C++ runtime."""
        graph = function.graph
        if len(function.members) != 1:
            raise UnsupportedError("a BLAS computes one product a call")
        node = graph.nodes[function.members[0]]
        product = product_of(graph, node)
        weights = b""
        places = []
        for index in node.inputs:
            if graph.values[index].constant:
                places.append({"input": -1, "offset": len(weights) // 4})
                weights += np.ascontiguousarray(function.constant(index)).tobytes()
            else:
                places.append({"input": function.inputs.index(index), "offset": 0})
        return {
            "m": product.rows,
            "n": product.columns,
            "k": product.depth,
            "a": places[product.left] | {"batch": list(product.a_offsets)},
            "b": places[1 - product.left] | {"batch": list(product.b_offsets)},
        }, weights
