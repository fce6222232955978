"""Defines workers that build, load and run placements by a script, without real processes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from collage_engine.lowering.build import BuildCover
from collage_engine.lowering.built import BuiltModule, Kernel
from collage_engine.lowering.stopwatch import KernelTime
from collage_engine.machine.worker import WorkerCrashed
from collage_engine.records.candidate import Candidate
from collage_engine.records.graph import ModelRecord
from collage_engine.records.placement import MemorySeen
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import Cancelled, ToolchainError
from collage_engine.trials.contender import ModuleKey, Sample
from collage_engine.trials.objective import TrialSettings
from collage_engine.trials.placement_process import Module, TrialBench
from collage_engine.trials.trial_job import (
    PlacementProfile,
    TrialJob,
)
from tests.support.covers import candidate_on

HANGS_S = 30.0
"""Seconds after which a build that hangs, and that nobody ends, fails the test; chosen."""


def instance(name: str, precision: str = "float32") -> ToolchainInstance:
    """Returns an instance whose configuration names the placement that it makes up."""
    return ToolchainInstance(
        toolchain="tvm", config=(("name", name),), threads=2, precision=precision
    )


def cover(name: str, partitions: int = 1, precision: str = "float32") -> tuple[Candidate, ...]:
    """Returns a cover that goes by this name in the script."""
    return tuple(candidate_on(instance(name, precision), (k,)) for k in range(partitions))


def trial_model(outputs: Mapping[str, str] | None = None, weights_bytes: int = 0) -> Any:
    """Returns what trials know of a model of one input; its file is this one."""
    record = ModelRecord(path=__file__, sha256="", nodes=1, weights_bytes=weights_bytes)
    kinds = outputs or {"y": "float32"}
    return SimpleNamespace(
        record=record,
        graph=None,
        inputs=[("x", SimpleNamespace(dtype="float32"))],
        outputs=[(name, SimpleNamespace(dtype=dtype)) for name, dtype in kinds.items()],
    )


class Script:
    """A script of what every placement does, by its name."""

    def __init__(self) -> None:
        self.us: dict[str, float | Callable[[int], float]] = defaultdict(lambda: 100.0)
        """µs of a call: a number, or a function of the round."""
        self.errors: dict[str, tuple[float, float]] = {}
        """Largest absolute and relative error."""
        self.output_errors: dict[str, dict[str, tuple[float, float]]] = {}
        """Absolute and relative errors by output; absent: all of the only one."""
        self.outputs: dict[str, str] = {"y": "float32"}
        """Element types by output."""
        self.refuse_build: dict[str, str] = {}
        self.hang_in_build: set[str] = set()
        """Placements whose build ends only when it is told to."""
        self.peak_bytes: dict[str, int] = defaultdict(lambda: 1 << 20)
        """Resident memory while running."""
        self.crash_in_round: dict[str, int] = {}
        self.kills: list[tuple[str, Any]] = []
        """Placements and requests in which something outside kills the process, once for each."""
        self.profile_raises: dict[str, Exception] = {}
        self.views: set[tuple[str, int]] = set()
        """Name of a placement and place of a partition without a kernel."""
        self.kernel_us = 5.0
        self.between_us = 1.5
        self.slow: Iterator[float] | None = None
        """How many times slower the machine is, by profile."""
        self.loaded: set[str] = set()
        self.most_loaded = 0
        self.rounds: dict[str, int] = defaultdict(int)
        self.opened: dict[str, int] = defaultdict(int)
        self.built: list[str] = []
        self.closed: list[str] = []
        self.environments: dict[str, dict[str, str]] = {}

    def worker(
        self, target: str, *, env: dict[str, str] | None = None, name: str = ""
    ) -> ScriptedWorker:
        """Start a worker of this script."""
        return ScriptedWorker(self, env or {})

    def bench(
        self,
        folder: Path,
        tolerance: float = 1e-4,
        *,
        sample: Sample | None = None,
        most_memory_bytes: int = 0,
        modules: Mapping[ModuleKey, Module] | None = None,
        **more: Any,
    ) -> TrialBench:
        """Returns a bench whose processes follow this script."""
        one = np.ones(1, "float32")
        return TrialBench(
            trial_model(self.outputs),
            [sample or Sample({"x": one}, {"y": one})],
            tolerance,
            folder,
            settings=TrialSettings(rest_s=0.0, most_memory_bytes=most_memory_bytes),
            start_worker=self.worker,
            modules=modules or {},
            **more,
        )


def kind_of(request: Any) -> Any:
    """Returns the class of a request to a builder, or the method of one to a placement."""
    if isinstance(request, BuildCover):
        return BuildCover
    return request.func if isinstance(request, partial) else request


class ScriptedWorker:
    """A worker that follows a script."""

    def __init__(self, script: Script, env: dict[str, str]) -> None:
        self.script, self.env = script, env
        self.name: str | None = None
        self.is_open = False
        self.parts = 0

    def __enter__(self) -> ScriptedWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        if self.name is not None:
            self.script.loaded.discard(self.name)
            self.script.closed.append(self.name)

    def call(self, request: Any, timeout_s: float, cancel: Any = None) -> Any:
        """Answer a request."""
        if cancel is not None and cancel.is_set():
            raise Cancelled("stopped")
        script = self.script
        if isinstance(request, BuildCover):
            return self._build(request, cancel)
        if kind_of(request) is TrialJob.open:
            self.name, parts = Path(request.keywords["request"].module).read_text().split()
            self.parts = int(parts)
            self._be_killed(request, self.name)
            self.is_open = True
            script.environments[self.name] = self.env
            script.loaded.add(self.name)
            script.opened[self.name] += 1
            script.most_loaded = max(script.most_loaded, len(script.loaded))
            absolute, relative = script.errors.get(self.name, (1e-6, 1e-6))
            by_output = script.output_errors.get(self.name, {"y": (absolute, relative)})
            return by_output
        assert self.name is not None and self.is_open, "a new process has to load it"
        self._be_killed(request, self.name)
        if kind_of(request) is TrialJob.round:
            number = script.rounds[self.name]
            script.rounds[self.name] += 1
            if script.crash_in_round.get(self.name) == number:
                raise WorkerCrashed("killed by SIGSEGV")
            us = script.us[self.name]
            return [(us(number) if callable(us) else us) * 1e-6] * 2
        if kind_of(request) is TrialJob.memory:
            return MemorySeen(peak_bytes=script.peak_bytes[self.name or ""])
        if self.name in script.profile_raises:
            raise script.profile_raises[self.name]
        slow = next(script.slow) if script.slow is not None else 1.0
        kernels = [
            KernelTime(kernel=f"k{k}", us=script.kernel_us * slow)
            for k in range(self.parts)
            if (self.name, k) not in script.views
        ]
        between = [
            KernelTime(kernel="to_nhwc", us=script.between_us * slow),
            KernelTime(kernel="vm.builtin.alloc_storage", us=9.0),
        ]
        return PlacementProfile(calls=(*kernels[:1], *between, *kernels[1:]), call_us=2.5)

    def _be_killed(self, request: Any, name: str) -> None:
        if (name, kind_of(request)) in self.script.kills:
            self.script.kills.remove((name, kind_of(request)))
            self.is_open = False
            raise WorkerCrashed("killed by SIGKILL", from_outside=True)

    def _build(self, request: BuildCover, cancel: Any) -> BuiltModule:
        name = request.cover[0].instance.option("name") if request.cover else "nothing"
        folder = Path(request.folder)
        folder.mkdir(parents=True)
        if name in self.script.hang_in_build:
            end = time.monotonic() + HANGS_S
            while not cancel.is_set():
                assert time.monotonic() < end, f"nobody ended the build of {name}"
                time.sleep(0.01)
            raise Cancelled("stopped")
        if name in self.script.refuse_build:
            raise ToolchainError(self.script.refuse_build[name])
        self.script.built.append(name)
        (folder / "model.so").write_text(f"{name} {len(request.cover)}")
        self._be_killed(request, name)
        return BuiltModule(
            parts=request.cover,
            kernels=tuple(
                Kernel(name=f"k{k}", part=k)
                for k in range(len(request.cover))
                if (name, k) not in self.script.views
            ),
            libraries=(),
            threads=2,
            spin=False,
            environment={"PLACEMENT": name},
        )
