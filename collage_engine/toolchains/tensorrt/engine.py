"""Builds engines: a network, the builder's settings, and the timing cache of this machine.

TensorRT times kernels while it builds, and two builds may choose different kernels. What it has
timed is kept in a cache on disk and with every engine, so that the engine of an artifact has the
kernels of the engine that was measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members
from collage_engine.records.errors import ToolchainError
from collage_engine.records.files import write_atomically
from collage_engine.records.locks import locked
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.toolchains.runtime.builder import build_folder
from collage_engine.toolchains.tensorrt.convert import Converter
from collage_engine.toolchains.tensorrt.library import (
    Api,
    api,
    bare,
    reason_against_architecture,
)
from collage_engine.toolchains.tensorrt.values import Constants

HALVES = {"fp16": "float16", "bf16": "bfloat16"}
"""The type in which float32 values are computed, by the option ``precision`` of an instance."""
MOST_CARRIED = 4 << 20
"""Bytes of a timing cache that is kept with an engine, at most; chosen. A larger one stays on
this machine."""


@dataclass(frozen=True)
class Engine:
    """An engine that TensorRT built, serialised."""

    plan: bytes
    timing_cache: bytes
    about: dict[str, Any]
    """Release, flavour, layers and precision, for the faces and for whoever loads the engine."""


def build_engine(
    graph: DataflowGraph,
    nodes: NodeSet,
    inputs: tuple[NodeIndex, ...],
    outputs: tuple[NodeIndex, ...],
    constants: Constants,
    architecture: str,
    precision: str = "",
    tf32: bool = False,
) -> Engine:
    """Builds the engine of a function.

    Args:
        graph: The model's dataflow graph.
        nodes: The function's closed set of nodes.
        inputs: Node indices of the inputs, in argument order.
        outputs: Node indices of the outputs, in argument order.
        constants: Gives the value of a constant node.
        architecture: The device's architecture, for example ``sm_90a``.
        precision: Empty for float32, ``fp16`` or ``bf16``.
        tf32: Whether products of float32 may be rounded to tf32.

    Raises:
        UnsupportedError: A call has no layers; the text names it.
        ToolchainError: TensorRT builds no engine; the text says why.
    """
    found = api()
    reason = reason_against_architecture(architecture)
    if reason is not None:
        raise ToolchainError(reason)
    made = network_of(graph, nodes, inputs, outputs, constants, precision)
    log, builder, network = made.log, made.builder, made.network
    half = HALVES.get(precision)
    config = builder.create_builder_config()
    kinds = {kind.dtype for i in members(nodes) for kind in graph.nodes[i].types}
    configure(found, config, architecture, kinds, half, tf32)
    cache = with_cache(found, config, architecture)
    serialised = builder.build_serialized_network(network, config)
    if serialised is None:
        raise ToolchainError(reason_of(log, "TensorRT builds no engine of it"))
    timings = kept(found, config, cache, architecture)
    if len(timings) > MOST_CARRIED:
        timings = b""
    about = {
        "library": found.flavour.module,
        "title": found.flavour.title,
        "version": found.version,
        "architecture": bare(architecture),
        "layers": network.num_layers,
        "strongly_typed": found.strongly_typed,
        "precision": half or "as the model says",
    }
    return Engine(bytes(serialised), timings, about)


@dataclass(frozen=True)
class Network:
    """A converted function, and what must live as long as it."""

    network: Any
    builder: Any
    log: Any
    converter: Converter
    """The converter that made the network; it owns the weights that the network points to."""


def network_of(
    graph: DataflowGraph,
    nodes: NodeSet,
    inputs: tuple[NodeIndex, ...],
    outputs: tuple[NodeIndex, ...],
    constants: Constants,
    precision: str = "",
) -> Network:
    """Returns the network of a function.

    The arguments and errors are those of ``build_engine``.
    """
    found = api()
    log = logger(found)
    builder = found.trt.Builder(log)
    if builder is None or log.broken:
        raise ToolchainError(reason_of(log, "TensorRT's builder does not start"))
    log.errors.clear()
    network = builder.create_network(creation_flags(found))
    half = HALVES.get(precision) if found.strongly_typed else None
    converter = Converter(found, network, graph, constants, half)
    converter.convert(nodes, inputs, outputs)
    if log.errors:
        raise ToolchainError(reason_of(log, ""))
    return Network(network, builder, log, converter)


def logger(found: Api) -> Any:
    """Returns a logger that keeps errors and prints nothing."""
    trt = found.trt
    severity = trt.ILogger.Severity

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.broken = False

        def log(self, level: Any, message: str) -> None:
            if level in (severity.INTERNAL_ERROR, severity.ERROR):
                self.errors.append(message)
                self.broken = self.broken or level == severity.INTERNAL_ERROR

    return Logger()


_PLACE = re.compile(
    r"^(\[\S+\]\s*)?([\w:]+:\s*)?(Error Code \d+:\s*)?|\s*\(In \w+ at .*$|\s*\[\S+:\d+\]\s*$"
)


def reason_of(log: Any, otherwise: str) -> str:
    """Returns TensorRT's first error without the places in its sources.

    ``otherwise`` if there is none.
    """
    lines = [line.strip() for text in log.errors for line in text.splitlines() if line.strip()]
    return f"TensorRT: {_PLACE.sub('', lines[0])}" if lines else otherwise


def creation_flags(found: Api) -> int:
    """Returns the flags with which networks are created, as a bit mask."""
    kinds = found.trt.NetworkDefinitionCreationFlag
    flag = getattr(kinds, "STRONGLY_TYPED" if found.strongly_typed else "EXPLICIT_BATCH", None)
    return 1 << int(flag) if flag is not None else 0  # a release has none where it is the rule


def configure(
    found: Api, config: Any, architecture: str, kinds: set[str], half: str | None, tf32: bool
) -> None:
    """Sets the builder's options so that all toolchains compute with equal arithmetic.

    The engine uses one stream, and the architecture is named where the release can be told it.

    Args:
        found: The TensorRT that is installed.
        config: The builder's configuration, which is changed.
        architecture: The device's architecture.
        kinds: The element types of the function's values.
        half: The type in which float32 values are computed, or None for float32.
        tf32: Whether products of float32 may be rounded to tf32.

    Raises:
        ToolchainError: The release does not compute in one of the types.
    """
    trt, flags = found.trt, found.trt.BuilderFlag
    if hasattr(flags, "TF32"):  # on unless it is cleared
        (config.set_flag if tf32 else config.clear_flag)(flags.TF32)
    if not found.strongly_typed:
        wanted = []
        if half == "float16" or "float16" in kinds:
            wanted.append("FP16")
        if half == "bfloat16" or "bfloat16" in kinds:
            wanted.append("BF16")
        if kinds & {"int8", "uint8"}:
            wanted.append("INT8")
        for name in wanted:
            flag = getattr(flags, name, None)
            if flag is None:
                raise ToolchainError(f"TensorRT {found.version} computes in no {name}")
            config.set_flag(flag)
    if hasattr(config, "max_aux_streams"):
        config.max_aux_streams = 0
    if hasattr(trt, "ProfilingVerbosity"):
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if found.architectures():
        name = bare(architecture).replace("sm_", "SM")
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, name), 0)


# ---- timing cache ------------------------------------------------------------------------------


def cache_file(found: Api, architecture: str) -> Path:
    """Returns the path of the timing cache of an architecture."""
    name = f"{found.flavour.module}-{found.version}-{bare(architecture)}.timing"
    return build_folder() / "tensorrt" / name


def with_cache(found: Api, config: Any, architecture: str) -> Any:
    """Gives the builder what has been timed before; returns the cache.

    The result is None for TensorRT-RTX, which times nothing but chooses kernels by rule.
    """
    if found.flavour.rtx:
        return None
    path = cache_file(found, architecture)
    known = path.read_bytes() if path.exists() else b""
    cache = config.create_timing_cache(known)
    if cache is None and known:
        cache = config.create_timing_cache(b"")
    if cache is not None:
        config.set_timing_cache(cache, False)
    return cache


def kept(found: Api, config: Any, cache: Any, architecture: str) -> bytes:
    """Merges what was timed now into the timing cache on disk; returns all of it.

    A cache that cannot be written costs time at the next build, nothing else.
    """
    current = config.get_timing_cache() if cache is not None else None
    if current is None:
        return b""
    path = cache_file(found, architecture)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            if path.exists():
                others = config.create_timing_cache(path.read_bytes())
                if others is not None:
                    current.combine(others, True)
            data = bytes(current.serialize())
            write_atomically(path, data)
        return data
    except OSError:
        return bytes(current.serialize())
