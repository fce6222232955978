"""Runs oneDNN 3.2 (the gomp build of 2023.2), the last wheel with a CPU engine of its own."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.machine.device import processor
from collage_engine.records.errors import ToolchainError
from collage_engine.records.format import NHWC, PLAIN
from collage_engine.records.numbering import NodeIndex
from collage_engine.records.precision import BFLOAT16, in_bfloat16
from collage_engine.records.toolchain import (
    SHORT_SPIN_TURNS,
    RuntimeLibrary,
    Target,
    ToolchainAbout,
    ToolchainInstance,
)
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.builder import HELD, RuntimeSource, find_in_wheel
from collage_engine.toolchains.runtime.toolchain import CppToolchain

if TYPE_CHECKING:
    from collage_engine.model.dataflow_graph import DataflowGraph
    from collage_engine.partition.rule_trees import PatternEntry
    from collage_engine.partition.spec import PartitionSpec

LIBRARY = "onednn-cpu-gomp"
HEADERS = "onednn-devel-cpu-gomp"
"""Packages of oneDNN's library and of its headers."""

NEEDED = frozenset({"avx512_bf16", "amx_bf16"})
"""Processor flags, any of which makes bfloat16 products faster than float32 ones; without them
oneDNN emulates bfloat16."""


class OneDnnToolchain(CppToolchain):
    """oneDNN primitives with fused post-ops; layouts inside are the library's choice."""

    about = ToolchainAbout(
        name="onednn",
        title="oneDNN",
        licence="Apache-2.0",
        mixes_precision=True,
        environment={"OMP_NUM_THREADS": "{threads}", "OMP_DYNAMIC": "false"},
        passive_environment={"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": SHORT_SPIN_TURNS},
        install=f"pip install {LIBRARY}==2023.2.0 {HEADERS}==2023.2.0",
        colour="#009e73",
        letters="DN",
        pattern="falling",
    )
    depends = (
        "collage_engine.kernels.rounding",
        "collage_engine.partition.patterns",
    )

    def version(self) -> str:
        """Returns the version of oneDNN itself, from its header: the wheel is numbered by year."""
        try:
            importlib.metadata.version(LIBRARY)
        except importlib.metadata.PackageNotFoundError:
            raise ToolchainError(f"the package {LIBRARY} is not installed") from None
        numbers = {}
        header = self._headers() / "oneapi" / "dnnl" / "dnnl_version.h"
        for line in header.read_text().splitlines():
            words = line.split()
            if len(words) == 3 and words[0] == "#define" and words[2].isdigit():
                numbers[words[1]] = words[2]
        parts = ("MAJOR", "MINOR", "PATCH")
        return ".".join(numbers.get(f"DNNL_VERSION_{part}", "?") for part in parts)

    def _headers(self) -> Path:
        return find_in_wheel(HEADERS, "dnnl_version.h", "oneapi/dnnl").parents[2]

    def library(self) -> Path:
        """Return the library's file."""
        return find_in_wheel(LIBRARY, "libdnnl.so.3")

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        library = self.library()
        return RuntimeSource(
            toolchain=self.name,
            main=Path(__file__).parent / "src" / "dnnl_module.cc",
            plan_version=1,
            library_version=self.version(),
            shared=(HELD,),
            includes=(self._headers(),),
            links=(library,),
            beside=(("libdnnl.so.3", library),),
        )

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        """Return its configurations; see ``Toolchain.instances``."""
        found = [ToolchainInstance(toolchain=self.name, threads=target.threads)]
        if precision == BFLOAT16 and NEEDED & frozenset(processor().flags):
            found.append(in_bfloat16(found[0]))
        return tuple(found)

    def formats(self, instance: ToolchainInstance) -> tuple[str, ...]:
        """Implements ``capabilities.BorderFormats``."""
        return (PLAIN, NHWC)

    def supports(
        self, graph: DataflowGraph, index: NodeIndex, instance: ToolchainInstance
    ) -> str | None:
        """Implements ``Toolchain.supports``."""
        from collage_engine.toolchains.onednn.generate import reason_against

        return reason_against(graph, index)

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionSpec:
        """Implements ``Toolchain.partition_spec``."""
        from collage_engine.toolchains.onednn.generate import partition_spec

        return partition_spec(self.name)

    def library_table(self) -> Sequence[PatternEntry]:
        """Implements ``capabilities.LibraryForKernels``."""
        from collage_engine.toolchains.onednn.generate import library_table

        return library_table(self.name)

    def library_call(self, function: Function) -> Any:
        """Implements ``capabilities.LibraryForKernels``."""
        return self.compile(function)

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """Return the plan and the weights of a function, for its C++ runtime."""
        from collage_engine.toolchains.onednn.bfloat16 import keep_in_bfloat16
        from collage_engine.toolchains.onednn.generate import generate

        plan, inputs, outputs = generate(
            function.graph,
            function.nodes,
            function.inputs,
            function.outputs,
            function.constant,
            function.takes,
            function.gives,
        )
        narrow = function.instance.precision == BFLOAT16
        if narrow:
            keep_in_bfloat16(plan, function.left_full)
        described = plan.as_json(inputs, outputs)
        # A convolution between such borders need not reach for row-major tensors.
        described["channels_last"] = int(bool(function.takes or function.gives))
        # Products of float32 tensors are then made of elements rounded to bfloat16.
        described["bfloat16"] = int(narrow)
        return described, bytes(plan.blob)

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that its runtime links, and the runtime itself."""
        library = RuntimeLibrary(
            file=str(self.library()),
            name="libdnnl.so.3",
            toolchain=self.name,
            version=self.version(),
            licence=self.about.licence,
        )
        return library, self.own_library()
