"""A device for tuning: kernels are compiled side by side here, and run in a child.

The child may crash, hang, or lose the device's context for good: the kernel that did it is of no
use, the next one gets a new child. What searches, in this process, never touches the device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from collage_engine.kernels.cuda.product.intrinsics import finish_sources
from collage_engine.kernels.tuning.device import Built, saved
from collage_engine.lowering.cubin import compile_cubin, source_of
from collage_engine.machine.cuda import choose_target
from collage_engine.machine.device import physical_cores
from collage_engine.machine.worker import Worker, WorkerError
from collage_engine.records.errors import ToolchainError
from collage_engine.records.reasons import short_reason
from collage_engine.tuning.kernel_job import JOB, Compare

COMPARE_S = 60.0
"""Seconds that two kernels may take to be checked and timed; above, one of them hangs; chosen."""
START_S = 120.0
"""Seconds for a child to start, in which TVM loads and the device wakes; chosen."""


@contextlib.contextmanager
def open_device(architecture: str) -> Iterator[KernelDevice]:
    """Yield the device ``cuda:0`` for tuning, and end its child afterwards.

    Args:
        architecture: What kernels are compiled for, such as ``sm_90a``.

    Raises:
        ToolchainError: The device is not there, or of another architecture.
    """
    target = choose_target(f"cuda:{architecture}")
    if target.device is None:
        raise ToolchainError(f"kernels cannot be tuned: there is {target.reason}")
    device = KernelDevice(architecture)
    try:
        yield device
    finally:
        device.close()


class KernelDevice:
    """The device for tuning; see ``kernels.tuning.device.Device``. Closing it ends the child."""

    def __init__(
        self,
        architecture: str,
        job: str = JOB,
        compile_: Callable[[str, str], bytes] = compile_cubin,
    ) -> None:
        self._architecture, self._compile = architecture, compile_
        self._worker = Worker(job, name="collage-kernels")
        finish_sources()

    def close(self) -> None:
        """End the child."""
        self._worker.close()

    def built(
        self, kernels: Sequence[Any], parts: Sequence[bool] | None = None
    ) -> list[Built | str]:
        """Compile kernels, side by side in as many processes as there are cores.

        Args:
            kernels: The scheduled kernels; their sources are written one after the other.
            parts: Whether each kernel's result consists of parts that are to be added; None: none.

        Returns:
            The compiled kernel, or the reason why it cannot be, for each.
        """
        made = [self._written(kernel) for kernel in kernels]
        wanted = {source for text, source in made if text}
        with ThreadPoolExecutor(max(1, min(len(wanted), physical_cores()))) as pool:
            codes = dict(zip(wanted, pool.map(self._compiled, wanted), strict=True))
        found: list[Built | str] = []
        for place, (text, source) in enumerate(made):
            code = codes[source] if text else source
            if isinstance(code, str):
                found.append(code)
            else:
                found.append(Built(text, code, source, bool(parts and parts[place])))
        return found

    def _written(self, kernel: Any) -> tuple[str, str]:
        """Return a kernel as text, and its CUDA source.

        Where TVM refuses it the text is empty, and the reason stands in place of the source.
        """
        try:
            return saved(kernel), source_of(kernel, self._architecture)
        except Exception as error:  # TVM's own, of several types
            return "", f"TVM cannot write it: {short_reason(error)}"

    def _compiled(self, source: str) -> bytes | str:
        """Return the compiled code of a source, or the reason why it cannot be compiled."""
        try:
            return self._compile(source, self._architecture)
        except ToolchainError as error:
            return str(error)

    def compare(self, best: Built, challenger: Built) -> tuple[float, float]:
        """Return the median seconds of a kernel and of its challenger, timed in turn in the child.

        Raises:
            ToolchainError: The challenger's numbers are wrong, or it ended the child.
        """
        fresh = not self._worker.alive
        try:
            first, second = self._worker.call(
                Compare(self._architecture, best, challenger),
                timeout_s=COMPARE_S + (START_S if fresh else 0.0),
            )
        except WorkerError as error:
            raise ToolchainError(f"on the device: {error}") from error
        return first, second
