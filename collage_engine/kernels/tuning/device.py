"""Defines a device that compiles, compares and times kernels, whatever becomes of them.

The tuners only write kernels; who compiles and runs them is handed in (the engine's room ``tuning``
does so, in ``tuning/kernel_device.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


def saved(function: Any) -> str:
    """Returns a PrimFunc as text that ``loaded`` reads again in another process."""
    import tvm

    return str(tvm.ir.save_json(function))


def loaded(text: str) -> Any:
    """Returns the PrimFunc of a text that ``saved`` wrote."""
    import tvm

    return tvm.ir.load_json(text)


@dataclass(frozen=True)
class Built:
    """A scheduled kernel, compiled for a device.

    The kernel's last parameter is its result.
    """

    kernel: str
    """The PrimFunc as text that ``saved`` wrote."""
    code: bytes
    """The compiled kernel as a cubin."""
    source: str
    """The CUDA source from which ``code`` was compiled."""
    parts: bool = False
    """Whether the result's first axis has parts of a sum, to be added before numbers are
    compared."""


class Device(Protocol):
    """A device in a process of its own, which any kernel may bring down."""

    def built(
        self, kernels: Sequence[Any], parts: Sequence[bool] | None = None
    ) -> list[Built | str]:
        """Compiles PrimFuncs side by side.

        Args:
            kernels: Scheduled PrimFuncs.
            parts: Whether each result has parts of a sum (see ``Built.parts``); None: none has.

        Returns:
            Each compiled kernel, or the reason why it cannot be compiled.
        """
        ...

    def compare(self, best: Built, challenger: Built) -> tuple[float, float]:
        """Returns the median seconds of both on equal random inputs, in interleaved rounds.

        Raises:
            ToolchainError: The challenger's numbers are not those of the best, or it crashes, hangs
                or spoils the device; the next call has a sound device again.
        """
        ...


OpenDevice = Callable[[str], contextlib.AbstractContextManager[Device]]
"""A function that opens the device for an architecture. It raises ``ToolchainError`` with the
reason where there is none."""


def no_device(architecture: str) -> contextlib.AbstractContextManager[Device]:
    """Raise the error of a tuner that was given no device."""
    from collage_engine.records.errors import ToolchainError

    raise ToolchainError(f"kernels for {architecture} cannot be tuned: no device was handed in")
