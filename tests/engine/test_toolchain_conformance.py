"""Every toolchain for processors passes the checks that users run over theirs.

Those for devices alone are checked in ``tests/device_codegen``, where their packages are.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from collage_engine.candidates.catalog import nan_losses, source_of
from collage_engine.model.importer import import_onnx
from collage_engine.records.placement import NanLoss, Placement
from collage_engine.run.conformance.subject import Nonconformance, Subject
from collage_engine.run.conformance.values import nan_is_handed_on
from collage_engine.toolchains import registry
from collage_engine.wording.facts import nan_losses_text
from tests.support.conformance import demand_conformance, every_check, names_of_toolchains
from tests.support.runs import partition
from tests.support.toolchain_cases import default_instance, imported, one_operator, tensors, whole
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


def test_a_toolchain_that_hides_where_it_loses_nan_is_found_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(type(registry.get("openvino")), "swallowing", frozenset())
    with pytest.raises(Nonconformance, match=r"Relu \(v\) alone gives a number where .* NaN"):
        nan_is_handed_on(Subject("openvino", tmp_path))


def test_what_loses_nan_is_named_and_can_be_left_out() -> None:
    model = import_onnx(one_operator("Relu", (2, 3)))
    tvm, openvino = map(registry.get, ("tvm", "openvino"))
    said = {
        toolchain.name: source_of(
            model.graph, toolchain, default_instance(toolchain), strict_nan=True
        ).supports(0)
        for toolchain in (tvm, openvino)
    }
    assert said["tvm"] is None and "--strict-nan" in (said["openvino"] or "")
    placement = Placement(partitions=(partition(0, toolchain="openvino"),), estimated_us=None)
    (loss,) = nan_losses(model.graph, placement)
    assert loss == NanLoss(operator="Relu", toolchain="openvino", nodes=1)
    placement = msgspec.structs.replace(placement, nan_losses=(loss,))
    assert nan_losses_text(placement, str.upper) == "Relu on OPENVINO (1 node)"
