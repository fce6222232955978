"""A toolchain that misbehaves in one chosen way at one chosen place, to test isolation.

It is in a package of its own as far as the engine knows: ``install`` writes what an installer would
write for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from collage_engine.partition.rules import PartitionRule
from collage_engine.records.toolchain import (
    Target,
    ToolchainAbout,
    ToolchainInstance,
)
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.onnx_fed import OnnxSessionToolchain
from tests.support.evil_session import misbehave

METADATA = "Metadata-Version: 2.1\nName: collage-evil\nVersion: 1.0\n"
ENTRY_POINTS = "[collage.toolchains]\nevil = tests.support.evil_toolchain:EvilToolchain\n"


def install(folder: Path) -> str:
    """Write the package's metadata into a folder; returns a ``PYTHONPATH`` that has it."""
    about = folder / "collage_evil-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(METADATA)
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[2])])


class EvilToolchain(OnnxSessionToolchain):
    """It runs element-wise operators, but for what ``EVIL_BEHAVIOUR`` says."""

    about = ToolchainAbout(name="evil", title="Evil", licence="Apache-2.0", own_threads=False)
    packages = ("onnx",)
    types = frozenset({"float32"})
    operators = frozenset({"Relu", "Add"})
    session = Path(__file__).with_name("evil_session.py")
    module = "onnx"

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        return None if misbehave("instances") else super().instances(target, precision)

    def supports(self, graph: Any, index: Any, instance: ToolchainInstance) -> str | None:
        return 5 if misbehave("supports") else super().supports(graph, index, instance)

    def partition_spec(self, instance: ToolchainInstance, graph: Any) -> Any:
        if misbehave("partition_spec"):
            return None
        spec = super().partition_spec(instance, graph)

        class Rule(PartitionRule):
            def candidates(self, graph: Any) -> Any:
                return 5 if misbehave("rules") else super().candidates(graph)

        return Rule(**vars(spec))

    def compile(self, function: Function) -> Any:
        return None if misbehave("build") else super().compile(function)

    def runtime_libraries(self) -> Any:
        return None if misbehave("libraries") else super().runtime_libraries()


misbehave("import")
