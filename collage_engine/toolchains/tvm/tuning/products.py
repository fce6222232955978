"""Tuning products on an NVIDIA device: every tile that could pay, timed there against the default.

There are some twenty plans a product (``cuda.tiles.plans``), so all of them are tried. They are
timed on a bare product of the same sizes, with random operands: a convolution reads its image
another way, so what is found is measured again as a candidate, beside the untuned one, before it
counts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from collage_engine.machine.cuda_runtime import DeviceFault
from collage_engine.records.errors import ToolchainError
from collage_engine.records.tuning import TuneRecord, TuneTask
from collage_engine.toolchains.tvm.cuda.fragments import ELEMENTS
from collage_engine.toolchains.tvm.cuda.tiles import PLAIN, Plan, Sizes, chosen, plans

FAMILY = "product"
WORTH = 0.98
"""A plan is better when it takes less than this share of the best one's time."""
ROUNDS = 7
LOST_DEVICE = 70
"""Exit status of a child whose device's context is spoiled for good, as in ``measure.job``."""
TOLERANCE = 1e-2
"""Between two plans, relative to the largest number: their sums are ordered differently."""


class Bench(Protocol):
    """Where plans of one product are built, checked and timed."""

    def compare(self, plans: tuple[Plan, Plan]) -> tuple[float, float]:
        """Median seconds of both, in interleaved rounds. ``ToolchainError`` or TVM's
        own error when the second cannot be built or its numbers are not the first's."""
        ...


def described(sizes: Sizes, math: str, architecture: str) -> tuple[str, dict[str, Any]]:
    """A line that equal products share, and what is needed to make one again."""
    text = f"product {sizes.s}x{sizes.m}x{sizes.n}x{sizes.k} {math} {architecture}"
    return text, {
        "family": FAMILY, "sizes": [sizes.s, sizes.m, sizes.n, sizes.k], "math": math,
        "architecture": architecture,
    }  # fmt: skip


def name_of(plan: Plan) -> str:
    tile = plan.tile
    return f"{tile.m}x{tile.n}x{tile.k} by {tile.thread[0]}x{tile.thread[1]}, split {plan.split}"


def tune(
    task: TuneTask,
    known: TuneRecord,
    deadline: float,
    about_to_try: Callable[[str], None],
    better: Callable[[TuneRecord], None],
    open_bench: Callable[[dict[str, Any]], contextlib.AbstractContextManager[Bench]] | None = None,
) -> TuneRecord:
    """The best plan found before the deadline. ``ToolchainError`` where there is no device."""
    begun = time.monotonic()
    about = task.description
    sizes, math, architecture = Sizes(*about["sizes"]), about["math"], about["architecture"]
    default = chosen(sizes, math, architecture)
    best = Plan.from_record(known.choice) if known.choice else default
    tried, failed = list(known.tried), list(known.failed)
    times = {"default_us": known.default_us, "tuned_us": known.tuned_us}

    def record(complete: bool) -> TuneRecord:
        return msgspec.structs.replace(
            known, choice={} if best == default else best.record(), tried=tuple(tried),
            failed=tuple(failed), complete=complete, **times,
            seconds=known.seconds + time.monotonic() - begun,
        )  # fmt: skip

    about_to_try("")
    with (open_bench or device_bench)(about) as bench:
        complete = True
        for plan in plans(sizes, math, architecture):
            name = name_of(plan)
            if plan == default or name in tried or name in failed:
                continue
            if time.monotonic() >= deadline:
                complete = False
                break
            about_to_try(name)
            try:
                ahead, challenger = bench.compare((best, plan))
            except DeviceFault:
                # Whatever ran in this process afterwards would fail for no fault of its own. The
                # parent has this plan's name, and goes on with a new process.
                os._exit(LOST_DEVICE)
            except Exception:  # TVM's own, of several types: this plan is of no use
                failed.append(name)
                continue
            tried.append(name)
            if challenger < WORTH * ahead:
                best = plan
                better(record(False))
        if best != default:
            # Many small wins over noise are none: what counts are fresh rounds.
            about_to_try(name_of(best))
            before, after = bench.compare((default, best))
            times = {"default_us": before * 1e6, "tuned_us": after * 1e6}
            if after >= WORTH * before:
                best = default
    return record(complete)


@contextlib.contextmanager
def device_bench(about: dict[str, Any]) -> Iterator[Bench]:
    """On ``cuda:0``. ``ToolchainError`` when it is not there or of another architecture."""
    from collage_engine.machine.cuda import choose_target

    target = choose_target(f"cuda:{about['architecture']}")
    if target.device is None:
        raise ToolchainError(f"products cannot be tuned: there is {target.reason}")
    bench = DeviceBench(about)
    try:
        yield bench
    finally:
        bench.close()


def bare_product(about: dict[str, Any], plan: Plan) -> Any:
    """The kernel of a product of the sizes, its operands plain arrays of the element type."""
    from tvm import te

    from collage_engine.toolchains.tvm.cuda.epilogue import OUT
    from collage_engine.toolchains.tvm.cuda.products import noted_product
    from collage_engine.toolchains.tvm.cuda.schedule import scheduled

    sizes, math = Sizes(*about["sizes"]), about["math"]
    element = ELEMENTS.get(math, "float32")
    a = te.placeholder((sizes.s, sizes.m, sizes.k), element, name="a")
    b = te.placeholder((sizes.s, sizes.k, sizes.n), element, name="b")
    out = (sizes.s, sizes.m, sizes.n)
    given = "float32" if plan.split > 1 or math == PLAIN else element
    whole = noted_product(
        lambda s, m, k: a(s, m, k), lambda s, k, n: b(s, k, n), sizes, plan, element,
        {"kind": "matmul", "merged": False}, out, (sizes.k, sizes.n),
    )  # fmt: skip

    def element_of(*index: Any) -> Any:
        if plan.split == 1:
            return whole(*index).astype(given)
        part, s, m, n = index
        return whole(part * sizes.s + s, m, n)

    shape = out if plan.split == 1 else (plan.split, *out)
    result = te.compute(shape, element_of, name=OUT)
    return scheduled(te.create_prim_func([a, b, result]))


class DeviceBench:
    """Kernels of one product on the device; a split sum is added by the host for the check, and
    its second kernel's time is estimated by what it moves."""

    def __init__(self, about: dict[str, Any]) -> None:
        import numpy as np
        import tvm

        from collage_engine.machine.cuda_runtime import CudaRuntime

        self._about = about
        self._cuda = CudaRuntime()
        self._device = tvm.runtime.device("cuda", 0)
        self._sizes = Sizes(*about["sizes"])
        s, m, n, k = about["sizes"]
        self._element = ELEMENTS.get(about["math"], "float32")
        random = np.random.default_rng(0)
        self._operands = [
            tvm.runtime.tensor(
                (random.standard_normal(shape) / k**0.25).astype(self._element), self._device
            )
            for shape in ((s, m, k), (s, k, n))
        ]
        self._made: dict[Plan, tuple[Any, Any]] = {}

    def close(self) -> None:
        for timer, _ in self._made.values():
            timer.close()
        self._made.clear()

    def compare(self, plans: tuple[Plan, Plan]) -> tuple[float, float]:
        from collage_engine.toolchains.tvm.verify import difference

        (first, one), (second, two) = (self._of(plan) for plan in plans)
        if difference(one, two) > TOLERANCE:
            raise ToolchainError("wrong numbers")
        times: tuple[list[float], list[float]] = [], []
        for number in range(ROUNDS):
            order = ((0, first), (1, second)) if number % 2 else ((1, second), (0, first))
            for place, timer in order:
                times[place].append(timer(timer.captured or 1) / (timer.captured or 1))
        middles = [sorted(values)[ROUNDS // 2] for values in times]
        return middles[0] + self._adding(plans[0]), middles[1] + self._adding(plans[1])

    def _adding(self, plan: Plan) -> float:
        """Seconds of adding a split sum's parts: a launch, and its bytes at 1 TB/s."""
        if plan.split == 1:
            return 0.0
        size = self._sizes
        return 2e-6 + 4.0 * size.s * size.m * size.n * (plan.split + 1) / 1e12

    def _of(self, plan: Plan) -> tuple[Any, Any]:
        if plan not in self._made:
            import tvm
            import tvm_ffi

            from collage_engine.machine.cuda import cuda_target
            from collage_engine.machine.cuda_timer import DeviceTimer

            kernel = bare_product(self._about, plan).with_attr("global_symbol", "product")
            module = tvm.tirx.build(
                tvm.IRModule({"product": kernel}), cuda_target(self._about["architecture"])
            )
            size = self._sizes
            shape = (size.s, size.m, size.n)
            split = plan.split > 1
            dtype = "float32" if split or self._about["math"] == PLAIN else self._element
            result = tvm.runtime.empty(
                (plan.split, *shape) if split else shape, dtype, self._device
            )
            entry = module["product"]
            entry(*self._operands, result)
            self._cuda.synchronize()
            numbers = result.numpy().astype("float32")
            device = tvm_ffi.device("cuda", 0)
            timer = DeviceTimer(
                [lambda: entry(*self._operands, result)], self._cuda,
                lambda stream: tvm_ffi.use_raw_stream(device, stream),
            )  # fmt: skip
            self._made[plan] = timer, numbers.sum(axis=0) if split else numbers
        return self._made[plan]
