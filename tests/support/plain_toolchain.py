"""Defines a toolchain for tests that lowers every operator to TIR, unscheduled."""

from __future__ import annotations

from typing import Any

from collage_engine.records.toolchain import (
    RuntimeLibrary,
    Target,
    ToolchainAbout,
    ToolchainInstance,
    ToolchainState,
)
from collage_engine.toolchains.base import Function, Toolchain

PLAIN = ToolchainInstance(toolchain="plain")


class PlainToolchain(Toolchain):
    """A toolchain of Relax's own legalisation and nothing more."""

    about = ToolchainAbout(name="plain", title="Plain", licence="Apache-2.0")

    def probe(self) -> ToolchainState:
        return ToolchainState(name=self.name, available=True, version="1", devices=("cpu",))

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        return (PLAIN,)

    def supports(self, graph: Any, index: int, instance: ToolchainInstance) -> str | None:
        return None

    def partition_spec(self, instance: ToolchainInstance, graph: Any) -> Any:
        raise AssertionError("not asked for in these tests")

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        return ()

    def lower(self, function: Function) -> Any:
        from tvm import relax

        from collage_engine.lowering.extract import relax_module

        module = relax_module(function.model, function.nodes, function.inputs, function.outputs)
        return relax.transform.LegalizeOps()(module)

    def inside(self, module: Any) -> dict[str, Any]:
        return {"kernels": sorted(str(v.name_hint) for v in module.get_global_vars())}


def register(monkeypatch: Any) -> None:
    """Make ``plain`` known to the registry of this process."""
    from collage_engine.toolchains import registry

    monkeypatch.setitem(
        registry.TOOLCHAINS, "plain", "tests.support.plain_toolchain:PlainToolchain"
    )
