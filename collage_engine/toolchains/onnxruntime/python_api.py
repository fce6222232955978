"""Uses ONNX Runtime's own Python interface: as the engine's oracle, and for its profiles.

A profile is the JSON file that ``SessionOptions.enable_profiling`` writes.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage_engine.model.values import for_onnx, from_onnx
from collage_engine.records.placement import LEAST_RUNS, MOST_RUNS, Layer, Profile
from collage_engine.support.errors import ToolchainError
from collage_engine.support.time_limits import LEAST_S

PROVIDERS = ["CPUExecutionProvider"]
QUIET = 4
"""``log_severity_level`` at which only fatal errors are written to standard error."""


def package() -> Any:
    """Return the package, without its telemetry; ToolchainError where it is not installed."""
    # It would write the names of models and graphs to a queue in the user's cache. The variable
    # is read when the library is loaded, and keeps it from making the queue; the function is what
    # other versions have.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
    except ImportError as error:
        raise ToolchainError(
            f"the package onnxruntime is not installed ({error}); pip install onnxruntime"
        ) from error
    onnxruntime.disable_telemetry_events()
    return onnxruntime


class Evaluator:
    """An ONNX model in a session of its own (``capabilities.OnnxSession``)."""

    def __init__(
        self,
        model: bytes | str,
        threads: int,
        optimise: bool,
        weights: Mapping[str, np.ndarray],
    ) -> None:
        onnxruntime = package()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = QUIET
        if threads:
            options.intra_op_num_threads = threads
        if not optimise:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if weights:
            # Views of the arrays, which have to live while the session is opened.
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(a) for a in weights.values()]
            options.add_external_initializers(list(weights), values)
        self._session = onnxruntime.InferenceSession(model, options, providers=PROVIDERS)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of all inputs that need a value, then of those that have one already."""
        needed, others = self._session.get_inputs(), self._session.get_overridable_initializers()
        return tuple(i.name for i in (*needed, *others))

    def run(
        self, outputs: Sequence[str] | None, feeds: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Return the values of these outputs; None: of all, in the file's order."""
        return from_onnx(self._session.run(outputs, for_onnx(feeds, self.inputs)))


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
        absorbs="nothing" if plain == called else "after" if FIRST.search(plain) else "before",
        kernel=provider,
        fell_back=provider if others and provider == HOST else "",
    )
