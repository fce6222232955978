"""A device compiles, compares and times kernels for tuning, whatever becomes of them.

The tuners only write kernels; who compiles and runs them is handed in (the engine's room ``tuning``
does so, in ``tuning/kernel_device.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Built:
    """It is a scheduled kernel, compiled for the device.

    Its last parameter is its result.
    """

    kernel: str
    """The PrimFunc, as ``metaschedule.saved`` writes it."""
    code: bytes
    """Cubin."""
    source: str
    """What that is the code of."""
    parts: bool = False
    """The result's first axis has parts of a sum, to be added before numbers are compared."""


class Device(Protocol):
    """A device, in a process of its own that may be lost with every kernel."""

    def built(
        self, kernels: Sequence[Any], parts: Sequence[bool] | None = None
    ) -> list[Built | str]:
        """PrimFuncs compiled side by side; the reason for each that cannot be."""
        ...

    def compare(self, best: Built, challenger: Built) -> tuple[float, float]:
        """Returns the median seconds of both on equal random inputs, in interleaved rounds.

        ``ToolchainError`` when the challenger's numbers are not those of the best, or when it
        crashes, hangs or spoils the device; the next call has a sound device again.
        """
        ...


OpenDevice = Callable[[str], contextlib.AbstractContextManager[Device]]
"""The device for an architecture; ``ToolchainError`` with the reason where there is none."""


def no_device(architecture: str) -> contextlib.AbstractContextManager[Device]:
    """Raise the error of a tuner that was given no device."""
    from collage_engine.records.errors import ToolchainError

    raise ToolchainError(f"kernels for {architecture} cannot be tuned: no device was handed in")
