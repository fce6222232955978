"""The worked examples in the docstrings of the search say what the search does."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ("api", "label_setting", "states", "sweep_order")


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str) -> None:
    module = importlib.import_module(f"collage_engine.search.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
