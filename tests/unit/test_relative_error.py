"""Errors of computed numbers."""

from __future__ import annotations

import numpy as np
import pytest

from collage_engine.lowering.accuracy import errors, tolerance, worst

INFINITE = (float("inf"), float("inf"))


def test_the_relative_error_is_scaled_by_the_largest_true_value():
    truth = np.array([100.0, 1.0, 0.0], "float32")
    assert errors(truth + np.array([0, 0.5, 0], "float32"), truth) == pytest.approx((0.5, 0.005))


def test_not_finite_where_the_truth_is_finite_is_infinitely_wrong():
    truth = np.array([1.0, 2.0], "float32")
    assert errors(np.array([1.0, np.nan], "float32"), truth) == INFINITE
    assert errors(np.array([np.inf, 2.0], "float32"), truth) == INFINITE


def test_infinities_and_nans_of_the_truth_must_be_met():
    truth = np.array([np.inf, np.nan, 1.0])
    assert errors(truth.copy(), truth) == (0.0, 0.0)
    assert errors(np.array([-np.inf, np.nan, 1.0]), truth) == INFINITE
    assert errors(np.array([np.inf, 0.0, 1.0]), truth) == INFINITE


def test_shapes_must_agree_and_empty_arrays_do():
    assert errors(np.zeros((2, 1)), np.zeros((1, 2))) == INFINITE
    assert errors(np.zeros((0, 2)), np.zeros((0, 2))) == (0.0, 0.0)


def test_an_all_zero_truth_is_judged_absolutely():
    assert errors(np.array([1e-9]), np.zeros(1)) == (1e-9, 1e-9)


def test_unsigned_integers_do_not_wrap_around():
    assert errors(np.array([0], "uint8"), np.array([255], "uint8")) == (255.0, 1.0)
    big = np.array([2**62], "int64")
    assert errors(big + 1, big)[0] == 1.0


def test_booleans_are_compared_as_numbers():
    assert errors(np.array([True]), np.array([False])) == (1.0, 1.0)


def test_the_worst_of_several_outputs_counts():
    one = np.ones(1)
    assert worst([(one, one), (one * 1.5, one)]) == (0.5, 0.5)
    assert worst([]) == (0.0, 0.0)


def test_tolerances_are_the_designs():
    assert tolerance("float32") == 1e-4
    assert tolerance("float16") == 1e-2
    assert tolerance("bfloat16") == 2e-2
    assert tolerance("int8") == pytest.approx(1 / 255)
