"""Every toolchain for devices passes the checks that users run over theirs."""

from __future__ import annotations

from tests.support.conformance import demand_conformance, every_check, names_of_toolchains


@every_check(names_of_toolchains(for_processors=False))
def test_the_toolchain_conforms(name: str, check: str) -> None:
    demand_conformance(name, check)
