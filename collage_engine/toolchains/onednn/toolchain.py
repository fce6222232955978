"""Runs oneDNN 3.2 (the gomp build of 2023.2), the last wheel with a CPU engine of its own.

In a bfloat16 instance convolutions and matrix products read both operands rounded to bfloat16 and
sum in float32. What is read by such products in that form is best stored in it: half the bytes,
no conversion before the next product. Everything else (softmax, normalisations, reductions, values
that leave) stays float32.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from collage_engine.machine.device import least_disturbed
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.rules import PartitionRule
from collage_engine.records.format import NHWC, PLAIN
from collage_engine.records.graph import OperatorNumber
from collage_engine.records.placement import Layer
from collage_engine.records.precision import BFLOAT16
from collage_engine.records.toolchain import (
    SHORT_SPIN_TURNS,
    ToolchainAbout,
    ToolchainInstance,
)
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.onednn.fuse import HEAVY
from collage_engine.toolchains.onednn.generate import generate, reason_against
from collage_engine.toolchains.onednn.steps import OneDnnProgram
from collage_engine.toolchains.runtime.builder import (
    HELD,
    RuntimeSource,
    find_in_wheel,
    header_version,
    wheel_version,
)
from collage_engine.toolchains.runtime.chains import fusing_rules
from collage_engine.toolchains.runtime.toolchain import CppToolchain

CARRIES = {"pool", "eltwise", "binary", "concat", "reshape", "permute", "slice"}
"""Names of the steps whose result has the element type of their operands."""


def keep_in_bfloat16(plan: OneDnnProgram, full: frozenset[int] = frozenset()) -> None:
    """Mark the products whose results another product will read, directly or through other steps.

    A backward pass: a product wants its operands in bfloat16; a step that keeps its operands'
    type wants them as its own result is wanted; so does a product of what is added to it.
    Products of the calls ``full`` (operator numbers) are left in float32, and marked so.
    """
    wanted: set[int] = set()
    for step in reversed(plan.steps):
        product = step.op in HEAVY
        if product and full.intersection(step.nodes):
            step.fields["full"] = 1
        elif product:
            wanted.update((step.fields["src"], step.fields["weights"]))
        if step.out not in wanted:
            continue
        if product:
            plan.types[step.out] = "bfloat16"
        if product or step.op in CARRIES:
            wanted.update(p.value for p in step.posts if p.kind == "binary")
        if step.op in CARRIES:
            sources = [step.fields[key] for key in ("src", "other") if key in step.fields]
            wanted.update([*sources, *step.fields.get("srcs", [])])


LIBRARY = "onednn-cpu-gomp"
HEADERS = "onednn-devel-cpu-gomp"
"""Packages of oneDNN's library and of its headers."""


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
    computes_bfloat16 = True
    swallowing = frozenset(
        (
            *("nn.relu", "clip", "maximum", "minimum", "exp", "erf", "sigmoid", "nn.softplus"),
            *("nn.softmax", "nn.log_softmax", "max", "min"),
            *("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"),
        )
    )
    """Operators whose primitives or post-ops make a number of NaN, with AVX2, AVX-512 or both."""
    depends = (
        "collage_engine.kernels.rounding",
        "collage_engine.partition.patterns",
    )

    def version(self) -> str:
        """Return the version of oneDNN itself, from its header: the wheel is numbered by year."""
        wheel_version(LIBRARY)
        return header_version(
            self._headers() / "oneapi" / "dnnl" / "dnnl_version.h", "DNNL_VERSION_"
        )

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
            library_version=self.version(),
            shared=(HELD,),
            includes=(self._headers(),),
            links=(library,),
            beside=(("libdnnl.so.3", library),),
        )

    def formats(self, instance: ToolchainInstance) -> tuple[str, ...]:
        """Implement ``Toolchain.formats``."""
        return (PLAIN, NHWC)

    def supports(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> str | None:
        """Implement ``Toolchain.supports``."""
        return reason_against(graph, index)

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionRule:
        """Implement ``Toolchain.partition_spec``."""
        return fusing_rules(self.name, reason_against, joins=True)

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """Return the plan and the weights of a function, for its C++ runtime."""
        narrow = function.instance.precision == BFLOAT16
        plan, inputs, outputs = generate(function)
        if narrow:
            keep_in_bfloat16(plan, function.left_full)
        described = plan.as_json(inputs, outputs)
        # A convolution alone reaches for row-major tensors, unless its borders are channels last.
        spatial = sum(step.op in ("conv", "pool") for step in plan.steps)
        described["alone"] = int(spatial == 1 and not function.takes and not function.gives)
        # Products of float32 tensors are then made of elements rounded to bfloat16.
        described["bfloat16"] = int(narrow)
        return described, bytes(plan.blob)

    def partition_layers(self, graph: DataflowGraph, said: Mapping[str, Any]) -> tuple[Layer, ...]:
        """Implement ``capabilities.ProfilesPartitions``: its primitives."""
        steps = json.loads(said["plan"])["steps"]
        layers = []
        runs = least_disturbed(list(zip(*(one["us"] for one in said["steps"]), strict=True)))
        for primitive, us in zip(said["steps"], zip(*runs, strict=True), strict=True):
            source = primitive["source"]
            nodes = steps[source]["nodes"] if source >= 0 else ()
            names = (graph.nodes[index].onnx_nodes for index in nodes)
            layers.append(
                Layer(
                    name=primitive["what"],
                    kind=primitive["implementation"],
                    us=statistics.median(us),
                    nodes=tuple(dict.fromkeys(chain.from_iterable(names))),
                )
            )
        return tuple(layers)
