"""How fast the machine is now, told by a small piece of work whose time is known.

One thread's speed is not constant: another thread on the same core, another guest of the host, the
clock. Measured on two processors of an AMD Zen 4 with a load of 3 to 6: nine of ten medians of the
same work, measured at different times, lie within 32 to 49 % of each other; normalised by the speed
probe, with only the calmer half of the samples counted (``timing.protocol``), within 18 to 24 %
(``tests/benchmarks/bench_drift.py`` repeats this).

The probe is a small matrix product, bound by arithmetic, and a product of vectors in the nearest
cache, bound by loads and stores, both of NumPy and on one thread. It is run before every sample of
a group, and the group's times are divided by how much slower it was than the *reference*: what it
takes in calm moments of this machine (``store.normalising``). All candidates of a group are divided
by the same number: it changes no ranking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Reading = tuple[float, float]
"""Seconds of the two kernels."""


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """The probe's work, and how its reference is found."""

    side: int = 64
    """Rows and columns of the matrices; chosen so small that no BLAS gives them to threads."""
    products: int = 6
    """Matrix products of a reading; chosen, with ``passes``, for some 60 µs."""
    width: int = 2048
    """Elements of the vectors; chosen: two of them stay in a first-level cache of 32 kB."""
    passes: int = 50
    """Vector products of a reading; chosen, see ``products``."""
    batch: int = 16
    """Readings between two looks at whether the machine is calm; chosen."""
    least_s: float = 0.1
    """Seconds that the reference is looked for at least; chosen."""
    most_s: float = 1.0
    """Seconds that it is looked for where the machine does not settle; chosen."""
    settled: float = 1.1
    """The machine is calm when three of four readings lie within this factor of the fastest tenth;
    chosen."""
    calm_percentile: int = 10
    """Percentile of the readings that is the reference: disturbances only lengthen a reading;
    chosen, the minimum itself would be one lucky reading."""


PROBE = ProbeSettings()

NAME = f"guard, NumPy {np.__version__}"
"""Name, in the store, of the constant that is the reference on this machine. It contains NumPy's
version, since the probe is NumPy's work; the word "guard" is of older stores, which stay valid."""


class SpeedProbe:
    """The small piece of work whose time is known on this machine."""

    def __init__(self, settings: ProbeSettings = PROBE) -> None:
        self._settings = settings
        rng = np.random.default_rng(0)
        side, width = settings.side, settings.width
        self._a, self._b = (rng.random((side, side), dtype=np.float32) for _ in range(2))
        self._c = np.empty((side, side), dtype=np.float32)
        self._x = rng.random(width, dtype=np.float32)
        self._y = np.empty(width, dtype=np.float32)
        self.read()

    def read(self) -> Reading:
        """Return what the work takes now, with its code and data in the nearest caches.

        It takes some 120 µs in all, since it runs once before it is timed. Right after a whole
        model the first run took 2.55 times the reference and the second 1.40 times, as every
        further one did then: what other work has pushed out of the caches says nothing of how fast
        the processor is.
        """
        self._work()
        return self._work()

    def _work(self) -> Reading:
        start = time.perf_counter()
        for _ in range(self._settings.products):
            np.dot(self._a, self._b, out=self._c)
        between = time.perf_counter()
        for _ in range(self._settings.passes):
            np.multiply(self._x, self._x, out=self._y)
        return between - start, time.perf_counter() - between


def reference(
    read: Callable[[], Reading],
    clock: Callable[[], float] = time.monotonic,
    settings: ProbeSettings = PROBE,
) -> Reading:
    """Return what the probe takes in calm moments.

    Args:
        read: Reads the probe once.
        clock: Returns the time in seconds.
        settings: How long calm moments are waited for, and what is calm.
    """
    readings: list[Reading] = []
    began = clock()
    while True:
        readings += [read() for _ in range(settings.batch)]
        calm = np.percentile(readings, settings.calm_percentile, axis=0)
        late = clock() - began
        settled = bool(np.all(np.percentile(readings, 75, axis=0) <= settings.settled * calm))
        if late >= settings.most_s or (late >= settings.least_s and settled):
            return float(calm[0]), float(calm[1])


def typical(readings: Sequence[Reading], percent: float) -> Reading:
    """Return a percentile of some readings, of each kernel by itself.

    Args:
        readings: The readings, at least one.
        percent: The percentile.
    """
    first, second = np.percentile(readings, percent, axis=0)
    return float(first), float(second)
