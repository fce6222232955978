"""Winograd's method: right numbers for every cut, and no more rounding than is said."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")

from dataclasses import replace

import numpy as np
import tvm
from msgspec import structs

from collage_engine.kernels.cpu.convolution import ConvProblem
from collage_engine.kernels.cpu.winograd import cost
from collage_engine.kernels.cpu.winograd.rule import Winograd
from collage_engine.kernels.target import Cpu, cpu
from collage_engine.kernels.tuner import build
from tests.support.tvm_cases import TOLERANCE, changed, conv, error_of, kernels_by

CASES = [
    # data, weight, padding
    ((1, 32, 14, 14), (48, 32, 3, 3), 1),
    ((2, 37, 13, 11), (19, 37, 3, 3), 1),
    ((1, 16, 7, 9), (40, 16, 3, 3), (2, 0, 1, 1)),
    ((1, 128, 5, 5), (33, 128, 3, 3), 0),
    ((1, 20, 3, 4), (16, 20, 3, 3), 1),
]


def planned(plan, data, weight, padding, tail="relu", processor: Cpu | None = None):
    """Kernels of a convolution by a changed plan, its image (given channels first) turned."""
    module = conv((data[0], *data[2:], data[1]), weight, 1, padding, 1, 1, "NHWC", tail)
    return kernels_by("conv winograd", module, processor or cpu(1), **plan)


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_its_plain_self(case, outputs: int) -> None:
    tail = ["relu", "residual", "silu", "none"][CASES.index(case) % 4]
    for kernel in planned({"outputs": outputs}, *case, tail):
        assert kernel.schedule == "conv winograd" and not kernel.reason
        assert error_of(kernel) <= TOLERANCE


@pytest.mark.parametrize(
    "plan",
    [{"group": 1}, {"group": 6, "block": 3}],
    ids=str,
)
def test_every_cut_gives_the_same(plan) -> None:
    (kernel,) = planned({"outputs": 2, **plan}, (1, 24, 11, 13), (70, 24, 3, 3), 1)
    assert error_of(kernel) <= TOLERANCE


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_share_groups_or_blocks(threads: int) -> None:
    """Small images have fewer groups than there are threads."""
    for size in (40, 8):
        (kernel,) = planned(
            {"outputs": 4},
            (1, 64, size, size),
            (112, 64, 3, 3),
            1,
            processor=replace(cpu(1), threads=threads),
        )
        assert "T.parallel" in kernel.function.script()
        assert error_of(kernel) <= TOLERANCE


@pytest.mark.parametrize("vector_bytes, registers", [(32, 16), (16, 32)])
def test_for_processors_with_other_vectors(vector_bytes: int, registers: int) -> None:
    processor = replace(cpu(1), vector_bytes=vector_bytes, registers=registers, halves=False)
    (kernel,) = planned({"outputs": 4}, *CASES[1], processor=processor)
    assert error_of(kernel) <= TOLERANCE


@pytest.mark.parametrize("outputs, most", [(2, 2e-6), (4, 2e-5)])
def test_rounding(outputs: int, most: float) -> None:
    """Against the convolution in double precision, 512 channels deep."""
    random = np.random.default_rng(0)
    data = np.maximum(random.standard_normal((1, 512, 10, 10)), 0).astype(np.float32)
    weight = random.standard_normal((16, 512, 3, 3)).astype(np.float32) / 68
    (kernel,) = planned({"outputs": outputs}, data.shape, weight.shape, 0, tail="none")
    image = np.ascontiguousarray(data.transpose(0, 2, 3, 1))
    problem = problem_of(image.shape, weight.shape, (1, 8, 8, 16))
    plan = changed(Winograd(), problem, cpu(1), {"outputs": outputs})
    packed = Winograd().pack(problem, plan, cpu(1), weight)
    result = tvm.runtime.tensor(np.zeros((1, 8, 8, 16), np.float32))
    build(kernel.function)["kernel"](tvm.runtime.tensor(image), tvm.runtime.tensor(packed), result)
    windows = np.lib.stride_tricks.sliding_window_view(data.astype(np.float64), (3, 3), (2, 3))
    truth = np.einsum("nchwkl,ockl->nhwo", windows, weight.astype(np.float64), optimize=True)
    error = np.abs(result.numpy() - truth).max() / np.abs(truth).max()
    assert error <= most


def problem_of(data: tuple, weight: tuple, out: tuple) -> ConvProblem:
    """A channels-last convolution without padding."""
    return ConvProblem(True, data, out, weight, 1, (1, 1), (0,) * 4, (1, 1))


def test_what_is_taken() -> None:
    taken = problem_of((1, 9, 9, 64), (64, 64, 3, 3), (1, 7, 7, 64))
    assert Winograd().matches(taken, cpu(1))
    for other in (
        {"weight": (64, 64, 5, 5)},
        {"weight": (64, 64, 1, 3)},
        {"strides": (2, 2)},
        {"dilation": (2, 2)},
        {"weight": (64, 32, 3, 3), "groups": 2},
        {"weight": (64, 3, 3, 3), "data": (1, 9, 9, 3)},
        {"channels_last": False},
    ):
        assert not Winograd().matches(structs.replace(taken, **other), cpu(1))


def test_chosen_where_it_saves_time() -> None:
    """Many channels and positions; not where the image is hardly larger than the kernel."""
    one = cpu(1)
    assert cost.worthwhile(one, 64, 64, (56, 56))
    assert not cost.worthwhile(one, 512, 512, (1, 1))
    assert cost.outputs_of(one, 64, 64, (56, 56)) == 4
