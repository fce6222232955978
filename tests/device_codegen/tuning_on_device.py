"""Run where a device is, or is pretended: two kernels of a product built, compared and timed.

``python -m tests.device_codegen.tuning_on_device`` prints what came of it as JSON.
"""

from __future__ import annotations

import json
from dataclasses import replace

from collage_engine.kernels.tuning.device import Built
from collage_engine.kernels.tuning.subjects import ProductSubject
from collage_engine.machine.cuda import choose_target
from collage_engine.records.errors import ToolchainError
from collage_engine.tuning.kernel_device import open_device


def main() -> None:
    architecture = choose_target("cuda").architecture
    about = {"sizes": [1, 32, 48, 64], "math": "plain", "architecture": architecture}
    subject, other = (
        ProductSubject({"family": "product", **about, "sizes": [1, 32, 48, k]}) for k in (64, 80)
    )
    unlike = next(p for p in subject.plans() if p.split == 1 and p != subject.default)
    with open_device(architecture) as device:
        first, second, third = device.built(
            [subject.kernel(subject.default), subject.kernel(unlike), other.kernel(other.default)]
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
