"""What is to be known of a run beside its times, and what differs between two."""

from __future__ import annotations

import msgspec

from collage_engine.records.pin import LimitVerdict, PinVerdict
from collage_engine.records.placement import MemorySeen, MemoryUse
from collage_engine.wording.facts import changed_facts, limit_facts, run_facts
from tests.support.runs import run_record

RUN = run_record(
    pins=[PinVerdict(pin="conv*=onednn", state="honoured", price_us=2.0)],
    memory=MemoryUse(
        seen=MemorySeen(), weights_bytes=1024, artifact_bytes=5 << 20, library_bytes=4 << 20
    ),
)


def test_limits_that_cannot_be_kept_say_why() -> None:
    reason = "no placement keeps to at most 1 MB"
    (fact,) = limit_facts(
        [
            LimitVerdict(
                constraint="max_bytes", text="at most 1 MB", state="infeasible", reason=reason
            )
        ]
    )
    assert fact.value == f"infeasible: {reason}"


def test_two_runs_side_by_side() -> None:
    assert RUN.memory is not None
    other = msgspec.structs.replace(
        RUN, pins=[], memory=msgspec.structs.replace(RUN.memory, weights_bytes=2048)
    )
    rows = {
        (fact.group, fact.name): (old, new)
        for fact, old, new in changed_facts(run_facts(other), run_facts(RUN))
    }
    assert rows["Pins", "conv*=onednn"] == (None, "honoured, +2.00 µs")
    assert rows["Memory", "the model's weights"] == ("2.00 KiB", "1.00 KiB")
    assert rows["Memory", "artifact"][0] == rows["Memory", "artifact"][1]
    groups = [group for group, _ in rows]
    assert groups == sorted(groups, key=groups.index), "a group's facts stay together"
