"""Runs the checks of ``collage toolchains check`` once for each toolchain, for several tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from collage_engine.run.conformance.checks import CHECKS
from collage_engine.run.conformance.run import Finding, check_toolchain
from collage_engine.toolchains import registry


def names_of_toolchains(for_processors: bool) -> list[str]:
    """Name the toolchains that compile for processors, or those that do not."""
    return [
        name
        for name in registry.all_names()
        if ("cpu" in registry.about(name).targets) == for_processors
    ]


def every_check(names: list[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Parametrizes a test with the name of a toolchain and that of a check."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        by_check = pytest.mark.parametrize("check", CHECKS)(test)
        return pytest.mark.parametrize("name", names)(by_check)

    return decorate


@cache
def findings(name: str) -> dict[str, Finding]:
    """Run the checks of a toolchain, once; what they find, by the check's name."""
    return {finding.check: finding for finding in check_toolchain(name, lambda finding: None)}


def demand_conformance(name: str, check: str) -> None:
    """Fail the test unless the toolchain passes; skip it where the check does not apply."""
    finding = findings(name).get(check)
    assert finding is not None, f"not run: {list(findings(name).values())[-1].text}"
    if finding.outcome == "skipped":
        pytest.skip(finding.text)
    assert finding.outcome == "passed", finding.text
