"""Reads ONNX Runtime's profile, the JSON file that ``SessionOptions.enable_profiling`` writes."""

from __future__ import annotations

import json
import re
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from collage_engine.model.values import for_onnx
from collage_engine.records.placement import LEAST_RUNS, MOST_RUNS, Layer, Profile
from collage_engine.support.errors import ToolchainError
from collage_engine.support.time_limits import LEAST_S
from collage_engine.toolchains.onnxruntime.python_api import package

SUFFIX = "_kernel_time"
INSERTED = re.compile(r"Reorder(In|Out)put|Memcpy\w+")
"""Types of the operators that the optimiser inserts; inserted Casts are known by their names."""
FIRST = re.compile(r"^fused |/MatMulAddFusion")
"""In the name of what was made of several nodes and is called after the first of them; other
fusions are called after their last node."""
HOST = "CPUExecutionProvider"
"""The provider to which falls back what no other one takes."""


def profile_layers(file: str, threads: int, inputs: Mapping[str, np.ndarray]) -> Profile:
    """Run a model as its users do, on the package's providers, with ONNX Runtime's profiling."""
    onnxruntime = package()
    with tempfile.TemporaryDirectory(prefix="collage-") as folder:
        options = onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "profile"))
        if threads:
            options.intra_op_num_threads = threads
        providers = onnxruntime.get_available_providers()
        session = onnxruntime.InferenceSession(file, options, providers=providers)
        feeds = for_onnx(inputs, [value.name for value in session.get_inputs()])
        began, runs = time.monotonic(), 0
        while runs < LEAST_RUNS or (runs < MOST_RUNS and time.monotonic() - began < LEAST_S):
            session.run(None, feeds)
            runs += 1
        layers = read_profile(json.loads(Path(session.end_profiling()).read_text()))
    if layers is None:
        raise ToolchainError("ONNX Runtime's profile names no layers")
    return layers


def read_profile(events: Any) -> Profile | None:
    """Return the layers of a profile, with the medians of its runs; None: it is none."""
    if not isinstance(events, list):
        return None
    kernels = [
        event
        for event in events
        if isinstance(event, dict)
        and event.get("cat") == "Node"
        and str(event.get("name", "")).endswith(SUFFIX)
    ]
    if not kernels:
        return None
    times: dict[str, list[float]] = {}
    about: dict[str, dict[str, Any]] = {}
    for event in kernels:
        name = event["name"].removesuffix(SUFFIX)
        times.setdefault(name, []).append(float(event["dur"]))
        about.setdefault(name, event["args"])
    others = any(args.get("provider") not in (HOST, None) for args in about.values())
    runs = [float(event["dur"]) for event in events if event.get("name") == "model_run"]
    layers = [
        _layer(name, args, statistics.median(times[name]), others) for name, args in about.items()
    ]
    return Profile(
        toolchain="onnxruntime",
        layers=tuple(layers),
        us=statistics.median(runs) if runs else None,
    )


def _layer(name: str, args: Mapping[str, Any], us: float, others: bool) -> Layer:
    kind, provider = str(args.get("op_name", "")), str(args.get("provider", ""))
    inserted = bool(INSERTED.fullmatch(kind)) or name.startswith("Inserted")
    plain = re.sub(r"(_token_\d+)+$", "", name)
    # The optimiser names what it makes after a node, or after an output (NCHWc).
    called = re.sub(r"_nchwc$|/\w*Fusion\w*/?.*$", "", plain.removeprefix("fused "))
    return Layer(
        name=name,
        kind=kind,
        us=us,
        nodes=() if inserted else (plain, called),
        absorbs=_absorbs(plain, called),
        kernel=provider,
        fell_back=provider if others and provider == HOST else "",
    )


def _absorbs(name: str, node: str) -> Literal["nothing", "after", "before"]:
    if name == node:
        return "nothing"
    return "after" if FIRST.search(name) else "before"
