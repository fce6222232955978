"""Implements the part of the contract that every toolchain with a C++ runtime shares."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from collage_engine.machine.device import processor
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import Match, Pattern, all_matches
from collage_engine.partition.rules import PartitionRule, composite_rules
from collage_engine.records.graph import OperatorNumber, OperatorSet, TensorType
from collage_engine.records.precision import BFLOAT16, in_precision
from collage_engine.records.toolchain import (
    RuntimeLibrary,
    Target,
    ToolchainInstance,
    ToolchainState,
)
from collage_engine.support.errors import ToolchainError, UnsupportedError, short_reason
from collage_engine.toolchains.base import Function, Toolchain
from collage_engine.toolchains.runtime import builder


def has_bfloat16() -> bool:
    """Tell whether the processor multiplies in bfloat16; without, asking for it only costs time."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(processor().flags)


class CppToolchain(Toolchain):
    """The base of toolchains that compile a function by writing a plan for their C++ runtime."""

    computes_bfloat16 = False
    """Whether it has an instance in bfloat16, where the processor multiplies in that."""
    licences: Mapping[str, str] = MappingProxyType({})
    """Licences of what comes with its library and has another one, by the beginnings of file names
    up to the first dot or dash."""

    @abstractmethod
    def source(self) -> builder.RuntimeSource:
        """Return the runtime's sources and libraries.

        Raises:
            ToolchainError: A file or package is missing; the text names it.
        """

    @abstractmethod
    def version(self) -> str:
        """Return the version of the library that the runtime calls.

        Raises:
            ToolchainError: Its package is not installed.
        """

    @abstractmethod
    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """Return the plan (JSON values that the C++ runtime reads) and the weights of a function.

        Raises:
            UnsupportedError: The runtime cannot compute the function; the text says why.
        """

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        """Return its configurations; see ``Toolchain.instances``."""
        plain = ToolchainInstance(toolchain=self.name, threads=target.threads)
        if self.computes_bfloat16 and precision == BFLOAT16 and has_bfloat16():
            return plain, in_precision(plain, BFLOAT16)
        return (plain,)

    def probe(self) -> ToolchainState:
        """Build and load the runtime, and the library with it."""
        try:
            version = self.version()
            kind = builder.load(self.source())
            self.check(kind)
        except builder.CompilerKilled:
            raise
        except ToolchainError as error:
            advice = error.advice if isinstance(error, builder.CannotBuild) else None
            return ToolchainState(
                name=self.name, available=False, reason=str(error), install=advice
            )
        return ToolchainState(name=self.name, available=True, version=version, devices=("cpu",))

    def check(self, kind: str) -> None:
        """Load the library itself, once the runtime is loaded.

        Raises:
            ToolchainError: The library does not load.
        """
        import tvm_ffi

        try:
            tvm_ffi.get_global_func(f"{kind}.check")()
        except Exception as error:
            raise ToolchainError(short_reason(error, line="first")) from error

    def compile(self, function: Function) -> Any:
        """Implement ``Toolchain.compile``."""
        return self.finish(function, *self.plan(function))

    def finish(self, function: Function, plan: dict[str, Any], weights: bytes) -> Any:
        """Return the module of a function from its plan and weights, as ``plan`` returns them.

        Raises:
            ToolchainError: The library refuses the plan; the text says why.
        """
        plan["inputs"] = [_spec(function.input_type(i)) for i in function.inputs]
        plan["outputs"] = [_spec(function.output_type(i)) for i in function.outputs]
        plan["threads"] = function.instance.threads
        plan["spin"] = function.spin
        return self.create(function.symbol, plan, weights)

    def create(self, symbol: str, plan: dict[str, Any], weights: bytes) -> Any:
        """Return a module from a finished plan.

        Args:
            symbol: The name of the module's function.
            plan: The plan, as JSON values that the C++ runtime reads.
            weights: The bytes of the weights, to which the plan refers by offsets.

        Raises:
            ToolchainError: The library refuses the plan; the text says why.
        """
        import tvm_ffi

        kind = _loaded_kind(type(self))
        make = tvm_ffi.get_global_func(f"{kind}.create")
        try:
            return make(symbol, json.dumps(plan, separators=(",", ":")), weights)
        except Exception as error:
            raise ToolchainError(f"{self.name}: {short_reason(error, line='first')}") from error

    def inside(self, module: Any) -> dict[str, Any]:
        """Implement ``Toolchain.inside``."""
        described: dict[str, Any] = json.loads(str(module["collage.inside"]()))
        return described

    def unpack(self, module: Any) -> tuple[str, dict[str, Any], bytes]:
        """Return the symbol, the plan and the weights of a module, from its serialised form."""
        data = memoryview(bytes(module["collage.save"]()))
        fields = []
        while data:
            size = int.from_bytes(data[:8], "little")
            fields.append(bytes(data[8 : 8 + size]))
            data = data[8 + size :]
        _, symbol, plan, weights = fields
        return symbol.decode(), json.loads(plan), weights

    def carried(
        self, file: Path, name: str = "", licence: str = "", *, linked: bool = False
    ) -> RuntimeLibrary:
        """Return a file of the library's, as an artifact carries it."""
        return RuntimeLibrary(
            file=str(file),
            name=name or file.name,
            toolchain=self.name,
            version=self.version(),
            licence=licence or self.about.licence,
            linked=linked,
        )

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that lie beside the runtime, and the runtime itself."""
        libraries = (
            self.carried(file, name, self.licences.get(re.split("[-.]", name)[0], ""))
            for name, file in self.source().beside
        )
        return (*libraries, self.own_library())

    def own_library(self) -> RuntimeLibrary:
        """Return our runtime as an artifact's NEEDED library."""
        path = builder.build(self.source())
        return self.carried(path, licence=self._licence_of_source(), linked=True)

    def _licence_of_source(self) -> str:
        """Return the licence of the package that the runtime's source is part of."""
        package = type(self).__module__.partition(".")[0]
        if package == __name__.partition(".")[0]:
            return "Apache-2.0"
        for distribution in metadata.packages_distributions().get(package, ()):
            about = metadata.metadata(distribution)
            for field in ("License-Expression", "License"):
                said = about[field].strip() if field in about else ""
                if said and "\n" not in said:  # some packages put the whole text there
                    return said
        return self.about.licence


class PatternToolchain(CppToolchain):
    """The base of toolchains whose candidates are the matches of one pattern, nothing joined."""

    pattern: Pattern
    """What the library computes in one call, or in a few."""

    @abstractmethod
    def check_calls(self, graph: DataflowGraph, nodes: OperatorSet) -> None:
        """Check that some calls are a partition for it, in whatever precision.

        Raises:
            UnsupportedError: They are none; the text says why.
        """

    def refused(self, graph: DataflowGraph, nodes: OperatorSet) -> str | None:
        """Return why these calls are no partition for it, in whatever precision; None: they are."""
        try:
            self.check_calls(graph, nodes)
        except UnsupportedError as error:
            return str(error)
        return None

    def supports(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> str | None:
        """Implement ``Toolchain.supports``: an operator by itself, or along with others."""
        if _taken_along(self, graph) >> index & 1:
            return None
        return self.refused(graph, 1 << index)

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionRule:
        """Implement ``Toolchain.partition_spec``: the matches of the pattern, nothing joined."""

        def refused(graph: DataflowGraph, match: Match) -> str | None:
            return self.refused(graph, match.nodes)

        table = [(f"{self.name}.product", self.pattern, refused)]
        return composite_rules(self.name, table)

    def takes_set(
        self, graph: DataflowGraph, instance: ToolchainInstance, nodes: OperatorSet
    ) -> bool:
        """Refuse what only goes along with a product, without one."""
        return self.refused(graph, nodes) is None


@lru_cache(maxsize=32)  # a process works on one model, or on a few of its shapes
def _taken_along(toolchain: PatternToolchain, graph: DataflowGraph) -> OperatorSet:
    """Return the calls of a graph that a toolchain runs, at least along with others."""
    taken = 0
    for root in graph.operators:
        for match in all_matches(graph, toolchain.pattern, root):
            if match.nodes & ~taken and toolchain.refused(graph, match.nodes) is None:
                taken |= match.nodes
    return taken


@cache
def _loaded_kind(cls: type[CppToolchain]) -> str:
    """Return the module kind of a toolchain's runtime, loaded once per process."""
    return builder.load(cls().source())


def _spec(kind: TensorType) -> dict[str, Any]:
    spec: dict[str, Any] = {"shape": list(kind.shape), "dtype": kind.dtype}
    return spec | {"any_rank": True} if kind.any_rank else spec
