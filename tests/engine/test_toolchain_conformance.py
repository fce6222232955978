"""Every toolchain for processors passes the checks that users run over theirs.

Those for devices alone are checked in ``tests/device_codegen``, where their packages are.
"""

from __future__ import annotations

import numpy as np
import pytest

from collage_engine.toolchains import registry
from tests.support.conformance import demand_conformance, every_check, names_of_toolchains
from tests.support.toolchain_cases import default_instance, imported, tensors, whole
from tests.support.toolchain_models import small_net


@every_check(names_of_toolchains(for_processors=True))
def test_the_toolchain_conforms(name: str, check: str) -> None:
    demand_conformance(name, check)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_arguments_may_lie_elsewhere_in_each_call(name: str) -> None:
    made, toolchain = imported(small_net()), registry.get(name)
    function = whole(made, default_instance(toolchain))
    module = toolchain.compile(function)
    feeds = made.random_inputs(0)
    calls = [tensors(function, {k: v.copy() for k, v in feeds.items()}) for _ in range(3)]
    module[function.symbol](*calls[0][0])
    truth = calls[0][1][0].copy()
    for _ in range(2):
        for arguments, results in calls:
            results[0].fill(0)
            module[function.symbol](*arguments)
            np.testing.assert_array_equal(results[0], truth)
