"""Run where a device is, or is pretended: two kernels of a product built, compared and timed.

``python -m tests.device_codegen.tuning_on_device`` prints what came of it as JSON.
"""

from __future__ import annotations

import json
from dataclasses import replace

from collage_engine.kernels.cuda.cuda_rule import bare_kernel
from collage_engine.kernels.cuda.gpu import Gpu
from collage_engine.kernels.cuda.product.plan import PLAIN, ProductSizes
from collage_engine.kernels.cuda.product.problem import ProductProblem
from collage_engine.kernels.registry import RULES
from collage_engine.kernels.tuning.device import Built
from collage_engine.machine.cuda import choose_target
from collage_engine.records.errors import ToolchainError
from collage_engine.tuning.kernel_device import open_device


def main() -> None:
    architecture = choose_target("cuda").architecture
    gpu = Gpu(architecture)
    default, other = (
        RULES.default(ProductProblem(ProductSizes(1, 32, 48, depth), PLAIN), gpu)
        for depth in (64, 80)
    )
    assert default is not None and other is not None
    unlike = next(each for each in RULES.neighbours(default, gpu) if each.plan.split == 1)
    with open_device(architecture) as device:
        first, second, third = device.built(
            [bare_kernel(default), bare_kernel(unlike), bare_kernel(other)]
        )
        assert all(isinstance(b, Built) for b in (first, second, third)), (first, second, third)
        assert isinstance(first, Built) and isinstance(second, Built) and isinstance(third, Built)
        times = device.compare(first, second)
        refused = {}
        for what, broken in (
            ("another product", third),
            ("no code", replace(second, kernel=second.kernel.replace("}", "]", 1))),
        ):
            try:
                device.compare(first, broken)
            except ToolchainError as error:
                refused[what] = str(error)[:300]
        again = device.compare(first, second)
    print(json.dumps({"times": times, "again": again, "refused": refused}))


if __name__ == "__main__":
    main()
