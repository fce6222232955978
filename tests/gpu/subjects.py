"""What is timed against each other in the benchmark: one process each, which sleeps between rounds.

A process of its own keeps a crash, a library's version and a spoilt device to one of them. All are
timed alike: some calls in a row, then a wait for the device, by the wall's clock. PyTorch's are
replayed from a CUDA graph of the whole call, which costs no more than its kernels.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tests.gpu.models import module_of

COLLAGE, EAGER, COMPILED = "Collage", "torch eager", "torch.compile max-autotune"
JOB = "tests.gpu.subjects:Subject"
CALLS = 20
WARM_S = 0.02
TF32_MATTERS = 1e-2
"""Errors above this are no rounding."""


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """Load a subject, run it on the artifact's sample, and check its numbers."""

    subject: str
    artifact: str
    model: str
    precision: str
    device: str = "cuda"


class Round(msgspec.Struct, frozen=True):
    """Time some calls in a row; answered with microseconds a call."""

    calls: int = CALLS


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """What became of opening a subject."""

    max_rel_error: float
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = {}


class Subject:
    """The child's state."""

    def __init__(self) -> None:
        self._call: Callable[[], Any] = lambda: None
        self._wait: Callable[[], None] = lambda: None

    def __call__(self, request: Open | Round) -> Any:
        if isinstance(request, Open):
            return self._open(request)
        end = time.perf_counter() + WARM_S
        while time.perf_counter() < end:
            self._call()
            self._wait()
        start = time.perf_counter()
        for _ in range(request.calls):
            self._call()
        self._wait()
        return (time.perf_counter() - start) / request.calls * 1e6

    def _open(self, request: Open) -> Opened:
        folder = Path(request.artifact)
        truth = np.load(folder / "sample_output.npz")
        make = _artifact if request.subject == COLLAGE else _torch
        self._call, self._wait, results, notes, versions = make(request, folder)
        error = max(
            _relative(result, truth[name]) for name, result in zip(truth, results, strict=True)
        )
        if not error <= TF32_MATTERS:
            raise RuntimeError(f"wrong numbers: relative error {error:.2g}")
        return Opened(max_rel_error=error, notes=tuple(notes), versions=versions)


Made = tuple[Callable[[], Any], Callable[[], None], list[np.ndarray], list[str], dict[str, str]]


def _relative(result: np.ndarray, truth: np.ndarray) -> float:
    y, r = np.asarray(result, np.float64), np.asarray(truth, np.float64)
    return float(np.abs(y - r).max() / max(np.abs(r).max(), 1e-30))


def _artifact(request: Open, folder: Path) -> Made:
    """The exported module, by the loader it carries."""
    spec = importlib.util.spec_from_file_location(
        "run_artifact", folder / "loader" / "run_artifact.py"
    )
    assert spec is not None and spec.loader is not None
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    loaded = loader.load(folder)
    inputs, _ = loader.read_sample(folder, loaded.manifest)
    tensors = loaded.bind(inputs)
    results = loaded(inputs)
    return (lambda: loaded.main(*tensors)), loaded.wait, results, [], {}


def _torch(request: Open, folder: Path) -> Made:
    """The module that was exported, made anew with the same weights; eager or compiled.

    ``max-autotune`` is asked to leave CUDA graphs to us: its own copy the inputs in every call.
    """
    import torch

    # The same arithmetic for all: convolutions of float32 would be rounded to tf32 by default.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = True
    device = torch.device(request.device)
    module, own = module_of(request.model, request.precision)
    module = module.to(device)
    sample = np.load(folder / "sample_input.npz")
    inputs = {name: torch.from_numpy(sample[name]).to(device) for name in own}
    versions = {"torch": torch.__version__, "cudnn (torch)": str(torch.backends.cudnn.version())}

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    run: Callable[..., Any] = module
    if request.subject == COMPILED:
        run = torch.compile(module, mode="max-autotune-no-cudagraphs", dynamic=False)

    def call() -> Any:
        with torch.inference_mode():
            return run(**inputs)

    given = call()
    given = given if isinstance(given, tuple | list) else (given,)
    results = [value.float().cpu().numpy() for value in given]
    notes: list[str] = []
    if device.type == "cuda":
        return _captured(call, notes), wait, results, notes, versions
    return call, wait, results, notes, versions


def _captured(call: Callable[[], Any], notes: list[str]) -> Callable[[], Any]:
    """The call replayed from a CUDA graph; itself where it cannot be captured."""
    import torch

    aside = torch.cuda.Stream()  # libraries make what they need on the stream of the first calls
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except Exception as error:
        torch.cuda.synchronize()
        notes.append(f"not in a CUDA graph: {(str(error).splitlines() or ['?'])[0]}")
        return call
    return graph.replay
