"""Which products of a partition stay in float32."""

from __future__ import annotations

from collage_engine.pipeline.mixing import left_full
from collage_engine.records.precision import careful, full_places, in_bfloat16, ranges
from collage_engine.records.toolchain import ToolchainInstance


def test_what_brings_most_for_its_time_is_left_in_float32() -> None:
    burden = {0: 4.0, 1: 4.0, 2: 1.0, 3: 1.0}
    effort = {0: 10.0, 1: 100.0, 2: 1.0, 3: 10.0}
    assert left_full(burden, burden, effort, 1.0) == frozenset()
    assert left_full(burden, burden, effort, 0.9) == {2}
    # Number 2 is not needed once 0 is: but it costs less than it would to keep it out.
    for share in (0.6, 0.5, 0.1):
        chosen = left_full(burden, burden, effort, share)
        assert sum(b for n, b in burden.items() if n not in chosen) <= share * 10
        assert 1 not in chosen or share < 0.4


def test_nothing_to_round_leaves_nothing() -> None:
    assert left_full([], {}, {}, 0.5) == frozenset()


def test_places_are_told_as_ranges_and_read_again() -> None:
    bf16 = in_bfloat16(ToolchainInstance(toolchain="onednn"))
    kept = careful(bf16, [17, 0, 1, 2])
    assert ranges([17, 0, 1, 2]) == "0-2+17"
    assert kept.id == "onednn[precision=bf16,float32=0-2+17]"
    assert full_places(kept) == {0, 1, 2, 17}
    assert careful(kept, ()) == bf16 and full_places(bf16) == frozenset()
