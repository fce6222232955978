"""Every toolchain passes the checks that users run over theirs (``collage toolchains check``)."""

from __future__ import annotations

from functools import cache

import pytest

from collage_engine.conformance.checks import CHECKS
from collage_engine.conformance.run import Finding, check_toolchain
from collage_engine.toolchains import registry


@cache
def findings(name: str) -> dict[str, Finding]:
    """What the checks find of a toolchain; run once."""
    return {finding.check: finding for finding in check_toolchain(name, lambda finding: None)}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", registry.known_names())
def test_the_toolchain_conforms(name: str, check: str) -> None:
    finding = findings(name).get(check)
    assert finding is not None, f"not run: {list(findings(name).values())[-1].text}"
    if finding.outcome == "skipped":
        pytest.skip(finding.text)
    assert finding.outcome == "passed", finding.text
