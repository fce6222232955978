"""A measuring job whose candidates only pretend: each does what its instance's name says."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collage_engine.records.candidate import Candidate
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import ModelError, UnsupportedError, WrongNumbersError
from collage_engine.timing.child import OpenRequest
from collage_engine.timing.job import MeasureJob


class Pretended:
    """``us`` microseconds a call; 'dies-timed' crashes in its fourth sample."""

    def __init__(self, instance: ToolchainInstance) -> None:
        self.us = float(instance.option("us", "100"))
        self.act = instance.option("act")
        self.max_rel_error = 1e-6
        self.samples = 0

    def time(self, calls: int) -> float:
        self.samples += 1
        if self.samples == 4 and self.act == "dies-timed":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.samples == 4 and self.act == "raises-timed":
            raise RuntimeError("first line\n\nkernel says no\n")
        return self.us * 1e-6 * calls * (1 + 0.001 * (self.samples % 3))

    def close(self) -> None:
        pass


class PretendedBench:
    def __init__(self, request: OpenRequest) -> None:
        self.log = Path(request.truth_folder) / "log"

    def compile_ahead(self, candidates: Sequence[Candidate], limit_s: float) -> None:
        with self.log.with_name("ahead").open("a") as stream:
            stream.write(" ".join(candidate.id for candidate in candidates) + "\n")

    def prepare(self, candidate: Candidate, about_to_run: Callable[[], None]) -> Pretended:
        nodes, instance = candidate.nodes, candidate.instance
        with self.log.open("a") as stream:
            stream.write(f"{os.getpid()} {nodes} {instance.id}\n")
        act = instance.option("act")
        if act == "unsupported":
            raise UnsupportedError("no kernel for float16")
        if act == "dies-compiling":
            os.abort()
        if act == "sleeps":
            time.sleep(float(instance.option("s", "60")))
        about_to_run()
        if act == "dies":
            print("double free or corruption", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGABRT)
        if act.startswith("killed") and self._again(act):
            os.kill(os.getpid(), signal.SIGKILL)
        if act == "raises-running":
            raise RuntimeError("an index is larger than the table")
        if act == "wrong":
            raise WrongNumbersError("wrong numbers in the output of conv1: relative error 0.5")
        return Pretended(instance)

    def _again(self, act: str) -> bool:
        """Whether "killed-2" was prepared no more than twice, by all children."""
        lines = self.log.read_text().splitlines()
        return sum(act in line for line in lines) <= int(act.removeprefix("killed-"))


class Job(MeasureJob):
    def open(self, request: OpenRequest) -> Any:
        if request.model.path == "broken.onnx":
            raise ModelError("broken.onnx is no ONNX file")
        if request.model.path == "crash.onnx":
            os.abort()
        if request.model.path == "stopped.onnx":
            os.kill(os.getpid(), signal.SIGSTOP)
        if request.model.path == "crash-once.onnx":
            before = Path(request.truth_folder) / "crashed"
            if not before.exists():
                before.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return PretendedBench(request)
