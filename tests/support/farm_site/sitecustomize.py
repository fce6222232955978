"""Has a member of a test's farm say other things of its machine; Python imports it at its start.

``COLLAGE_TEST_PROBE`` names a file with a factor: the speed probe of the member's worker reads so
many times its reference, whatever else the machine does. ``COLLAGE_TEST_VERSIONS`` is a text such
as ``msgspec=0.1``: libraries that the member believes to have in these versions.
``COLLAGE_TEST_SLOWER`` is the factor by which all candidates seem to be slower there.
"""

import importlib.metadata
import os
import sys
from pathlib import Path

if "collage_engine.farm.worker_process" in sys.orig_argv:
    if _factor := os.environ.get("COLLAGE_TEST_PROBE"):
        from collage_engine.timing.speed_probe import SpeedProbe

        def _read(self: SpeedProbe) -> tuple[float, float]:
            """What a machine takes that is so many times slower than its reference."""
            seconds = 60e-6 * float(Path(_factor).read_text())
            return seconds, seconds

        SpeedProbe.read = _read  # type: ignore[method-assign]
    if _versions := os.environ.get("COLLAGE_TEST_VERSIONS"):
        _true = importlib.metadata.version
        _believed = dict(one.split("=") for one in _versions.split(","))

        def _version(name: str) -> str:
            """The version that the test wants, or the true one."""
            return _believed.get(name) or _true(name)

        importlib.metadata.version = _version
    if _slower := os.environ.get("COLLAGE_TEST_SLOWER"):
        import msgspec

        from collage_engine.farm.member import Member
        from collage_engine.farm.messages import GroupAnswer

        _measured = Member._group

        def _group(self: Member, *arguments: object) -> GroupAnswer:
            """What the machine measures, so many times slower."""
            found = _measured(self, *arguments)  # type: ignore[arg-type]
            replace = msgspec.structs.replace
            return GroupAnswer(
                measurements=tuple(
                    replace(m, cost=replace(m.cost, median_us=m.cost.median_us * float(_slower)))
                    if m.cost.median_us
                    else m
                    for m in found.measurements
                )
            )

        Member._group = _group  # type: ignore[method-assign]
