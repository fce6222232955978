"""What is to be known of a run beside its times, and what differs between two."""

from __future__ import annotations

import msgspec

from collage_engine.records.pin import LimitVerdict, PinVerdict
from collage_engine.records.placement import (
    CandidateCounts,
    Conversion,
    MemorySeen,
    MemoryUse,
    Placement,
)
from collage_engine.records.precision import Accuracy
from collage_engine.records.toolchain import TuneCounts
from collage_engine.wording.facts import changed_facts, limit_facts, run_facts
from tests.support.runs import partition, run_record

PARTS = tuple(
    partition(k, id=f"p{k}", us=10.0, precision=precision, max_rel_error=error, gives=gives)
    for k, (precision, error, gives) in enumerate(
        [("bfloat16", 2e-3, {0: "nhwc"}), ("float32", 1e-7, {}), ("bfloat16", 3e-3, {})]
    )
)
PLACEMENT = Placement(
    partitions=PARTS,
    estimated_us=30.0,
    measured_us=40.0,
    conversions=(Conversion(node=0, source="nhwc", target="plain", us=1.5),),
)
RUN = run_record(
    candidates=CandidateCounts(enumerated=9, distinct=8, measured=5, skipped=3),
    placement=PLACEMENT,
    max_rel_error=4e-3,
    pins=[PinVerdict(pin="conv*=onednn", state="honoured", price_us=2.0)],
    limits=[
        LimitVerdict(
            constraint="max_runtimes",
            text="at most 1 runtime",
            state="honoured",
            price_us=11.0,
            reason="costs 11.0 µs (2.0 %)",
        )
    ],
    accuracy=Accuracy(
        precision="bfloat16",
        tolerance=0.01,
        samples=4,
        max_rel_error=5e-3,
        float32_us=50.0,
        float32_max_rel_error=1e-6,
    ),
    memory=MemoryUse(
        seen=MemorySeen(load_peak_bytes=2 << 20, run_peak_bytes=3 << 20),
        weights_bytes=1024,
        artifact_bytes=5 << 20,
        library_bytes=4 << 20,
    ),
    tuning=TuneCounts(workloads=7, tuned=3, tried=40, from_store=2, improved=1, seconds=12.0),
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
