"""The matrices of Winograd's convolution, against the convolution itself."""

from __future__ import annotations

import numpy as np
import pytest

from collage_engine.kernels.cpu.winograd.matrices import OUTPUTS, TAPS, transformed, transforms


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_products_of_transforms_are_the_convolution(outputs: int) -> None:
    random = np.random.default_rng(outputs)
    t = transforms(outputs)
    data, kernel, back = (np.array(m) for m in (t.data, t.kernel, t.back))
    points = outputs + TAPS - 1
    assert data.shape == (points, points) and kernel.shape == (points, TAPS)
    assert back.shape == (outputs, points)
    d, g = random.standard_normal((points, points)), random.standard_normal((TAPS, TAPS))
    direct = [
        [(d[i : i + TAPS, j : j + TAPS] * g).sum() for j in range(outputs)] for i in range(outputs)
    ]
    fewer = back @ ((kernel @ g @ kernel.T) * (data @ d @ data.T)) @ back.T
    np.testing.assert_allclose(fewer, direct, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_a_transformed_kernel_gives_its_taps_back(outputs: int) -> None:
    weight = np.random.default_rng(3).standard_normal((5, 4, TAPS, TAPS))
    wide = transformed(weight, outputs)
    points = outputs + TAPS - 1
    assert wide.shape == (5, 4, points, points) and wide.dtype == np.float32
    restores = transforms(outputs).restores()
    for i, rows in enumerate(restores):
        for j, columns in enumerate(restores):
            tap = sum(f * h * wide[:, :, r, c] for r, f in rows for c, h in columns)
            np.testing.assert_allclose(tap, weight[:, :, i, j], rtol=1e-4, atol=1e-5)
