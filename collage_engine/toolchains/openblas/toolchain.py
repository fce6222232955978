"""Runs products by OpenBLAS from the wheel scipy-openblas32, whose symbols begin with scipy_."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import anything, constant, op
from collage_engine.partition.rules import PartitionRule, byoc_rules
from collage_engine.records.graph import OperatorNumber, OperatorSet
from collage_engine.records.toolchain import RuntimeLibrary, ToolchainAbout, ToolchainInstance
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.openblas.product import (
    PRODUCTS,
    biased_product,
    reason_against,
    reason_against_call,
)
from collage_engine.toolchains.runtime.builder import RuntimeSource, find_in_wheel, wheel_version
from collage_engine.toolchains.runtime.toolchain import CppToolchain

PACKAGE = "scipy-openblas32"
LICENCES = {
    "libgfortran": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libquadmath": "LGPL-2.1-or-later",
}
"""Licences of what the wheel brings along, as its LICENSE.txt says them, by the files' names."""


class OpenBlasToolchain(CppToolchain):
    """One product a call, with its bias.

    OpenBLAS's own threads stay off: the runtime shares a product among threads itself.
    """

    about = ToolchainAbout(
        name="openblas",
        title="OpenBLAS",
        licence="BSD-3-Clause",
        environment={"OPENBLAS_NUM_THREADS": "1"},
        own_threads=False,
        install=f"pip install {PACKAGE}",
        colour="#f0e442",
        letters="OB",
        pattern="upright",
    )
    depends = ("collage_engine.partition.patterns",)

    def _libraries(self) -> tuple[Path, ...]:
        """Return OpenBLAS, then what its wheel brings along for it (the Fortran runtime)."""
        library = find_in_wheel(PACKAGE, "libscipy_openblas.so")
        others = [p for p in library.parent.iterdir() if ".so" in p.name and p != library]
        return (library, *sorted(others))

    def version(self) -> str:
        """Return the version of the library that is installed here."""
        return wheel_version(PACKAGE)

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        libraries = self._libraries()
        return RuntimeSource(
            toolchain=self.name,
            main=Path(__file__).parent / "src" / "openblas_module.cc",
            plan_version=1,
            library_version=self.version(),
            includes=(find_in_wheel(PACKAGE, "cblas.h", "include").parent,),
            links=libraries[:1],
            beside=tuple((file.name, file) for file in libraries),
        )

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that its runtime links, and the runtime itself."""
        libraries = (
            self.carried(file, licence=LICENCES.get(re.split("[-.]", file.name)[0], ""))
            for file in self._libraries()
        )
        return (*libraries, self.own_library())

    def supports(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> str | None:
        """Implement ``Toolchain.supports``."""
        return reason_against_call(graph, index)

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionRule:
        """Implement ``Toolchain.partition_spec``."""
        product = op(PRODUCTS, anything(), anything(), commutative=False)
        biased = product.optional(lambda x: op("add", x, constant("bias")))
        entry = (f"{self.name}.product", biased, lambda graph, m: reason_against(graph, m.nodes))
        return byoc_rules([entry], name=self.name)

    def takes_set(
        self, graph: DataflowGraph, instance: ToolchainInstance, nodes: OperatorSet
    ) -> bool:
        """Refuse several products: each is a call, and a candidate, of its own."""
        return reason_against(graph, nodes) is None

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """Return the plan and the weights of a function, for its C++ runtime."""
        graph = function.graph
        node, product, bias = biased_product(graph, function.nodes)
        weights = b""
        places = []
        for index in (*node.inputs, *([] if bias is None else [bias])):
            if graph.values[index].constant:
                places.append({"input": -1, "offset": len(weights) // 4})
                weights += np.ascontiguousarray(function.constant(index)).tobytes()
            else:
                places.append({"input": function.inputs.index(index), "offset": 0})
        plan = {
            "m": product.rows,
            "n": product.columns,
            "k": product.depth,
            "a": places[product.left] | {"batch": list(product.a_offsets)},
            "b": places[1 - product.left] | {"batch": list(product.b_offsets)},
        }
        if bias is not None:
            # A convolution's lies along the rows, which are its filters.
            by_rows = node.op != "matmul"
            begins = [begin // product.depth if by_rows else 0 for begin in product.a_offsets]
            plan |= {"bias": places[2] | {"batch": begins}, "bias_by_rows": by_rows}
        return plan, weights
