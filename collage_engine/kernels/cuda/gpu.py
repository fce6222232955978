"""Tells what plans of kernels depend on beside their sizes: how large an NVIDIA device is."""

from __future__ import annotations

from collage_engine.machine.cuda import generation

MULTIPROCESSORS = {80: 108, 86: 84, 87: 16, 89: 128, 90: 132, 100: 148, 120: 170}
"""Multiprocessors of a device of each generation by NVIDIA's data sheets: A100, A40, Orin, RTX
4090, H100 SXM, B200 and RTX 5090. Plans are made for it, because kernels are also compiled where no
device is."""


def multiprocessors(architecture: str) -> int:
    """Returns how many blocks of threads a device works on at a time, at most."""
    return MULTIPROCESSORS.get(generation(architecture), MULTIPROCESSORS[80])
