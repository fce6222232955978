"""Every toolchain for processors passes the checks that users run over theirs.

Those for devices alone are checked in ``tests/device_codegen``, where their packages are.
"""

from __future__ import annotations

from tests.support.conformance import demand_conformance, every_check, names_of_toolchains


@every_check(names_of_toolchains(for_processors=True))
def test_the_toolchain_conforms(name: str, check: str) -> None:
    demand_conformance(name, check)
