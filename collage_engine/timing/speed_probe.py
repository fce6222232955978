"""How fast the machine is just now, told by work whose time is known.

One thread's speed is not constant: another thread on the same core, another guest of the host, the
clock. Measured on two processors of an AMD Zen 4 with a load of 3 to 6: nine of ten medians of
separate sittings of one piece of work lie within 32 to 49 % of each other; told at the speed of
the guard, with only the calmer half of the samples counted (``protocol``), within 18 to 24 %.

The guard is a small matrix product, bound by arithmetic, and a product of vectors in the nearest
cache, bound by loads and stores, both of NumPy and on one thread. It is run before every sample of
a group, and the group's times are divided by how much slower it was than the *reference*: what it
took when the store was new. All rivals of a group are divided by the same: it changes no ranking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

Reading = tuple[float, float]
"""Seconds of the two kernels."""

SIDE, PRODUCTS = 64, 6
"""So small that no BLAS gives it to several threads."""
WIDTH, TIMES = 2048, 50
LOOK_S, LOOK_LONGEST_S = 0.1, 1.0
"""For the reference; the longer where the machine does not settle."""
SETTLED = 1.1
"""The machine was calm: three of four readings within so much of the fastest tenth."""
CALM = 10
"""Percentile of readings that is the reference: others only make it slower."""
LEAST = 0.05
"""A speed that differs less than this from the reference is the reference's."""


NAME = f"guard, NumPy {np.__version__}"
"""Of the constant that is the reference on this machine."""


class Guard:
    """Work whose time is known."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._a, self._b = (rng.random((SIDE, SIDE), dtype=np.float32) for _ in range(2))
        self._c = np.empty((SIDE, SIDE), dtype=np.float32)
        self._x = rng.random(WIDTH, dtype=np.float32)
        self._y = np.empty(WIDTH, dtype=np.float32)
        self.read()

    def read(self) -> Reading:
        """What the work takes now, its code and data in the nearest caches: some 120 µs.

        It runs once before it is timed. Right after a whole model the first run took 2.55 times the
        reference, the second 1.40, as every one in a row did then: what another's work has pushed
        out of the caches says nothing of how fast the processor is.
        """
        self._work()
        return self._work()

    def _work(self) -> Reading:
        start = time.perf_counter()
        for _ in range(PRODUCTS):
            np.dot(self._a, self._b, out=self._c)
        between = time.perf_counter()
        for _ in range(TIMES):
            np.multiply(self._x, self._x, out=self._y)
        return between - start, time.perf_counter() - between


def reference(read: Callable[[], Reading], clock: Callable[[], float] = time.monotonic) -> Reading:
    """What the guard takes in calm moments."""
    readings: list[Reading] = []
    began = clock()
    while True:
        readings += [read() for _ in range(16)]
        calm = np.percentile(readings, CALM, axis=0)
        late = clock() - began
        settled = bool(np.all(np.percentile(readings, 75, axis=0) <= SETTLED * calm))
        if late >= LOOK_LONGEST_S or (late >= LOOK_S and settled):
            return float(calm[0]), float(calm[1])


def slowness(readings: Sequence[Reading], known: Reading, percent: float) -> float:
    """How much slower than at the reference the machine was: the geometric mean of both kernels,
    at this percentile of the readings; 1 where it is too little to tell, or nothing was read."""
    if not readings:
        return 1.0
    now = np.percentile(readings, percent, axis=0)
    found = float(np.sqrt(np.prod(now / np.asarray(known))))
    return found if abs(found - 1.0) > LEAST else 1.0
