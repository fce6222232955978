"""Describes an NVIDIA device as the kernel rules see it."""

from __future__ import annotations

from dataclasses import dataclass

MULTIPROCESSORS = {"80": 108, "86": 84, "87": 16, "89": 128, "90": 132, "100": 148, "120": 170}
"""Multiprocessors of a device of each architecture by NVIDIA's data sheets: A100, A40, Orin, RTX
4090, H100 SXM, B200 and RTX 5090. Plans are made for it, because kernels are also compiled where no
device is."""


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA device, described by its architecture, for example ``sm_90a``."""

    architecture: str

    @property
    def multiprocessors(self) -> int:
        """Returns how many blocks of threads the device works on at a time, at most."""
        number = self.architecture.removeprefix("sm_").rstrip("af")
        return MULTIPROCESSORS.get(number, MULTIPROCESSORS["80"])
