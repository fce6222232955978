"""Partitions in two precisions: which products stay in float32, of which partitions."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from collage_engine.candidates.menu import Menu
from collage_engine.control.run_control import RunControl
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.candidate import make_candidate
from collage_engine.planning.hand_overs import hand_overs
from collage_engine.records.candidate import Candidate, CandidateRecord
from collage_engine.records.cost import UNKNOWN, Cost, invalid
from collage_engine.records.cost_table import CostTable, table_of
from collage_engine.records.precision import careful, full_places, in_bfloat16, ranges
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainAbout, ToolchainInstance
from collage_engine.run.stages import accuracy as stage_accuracy
from collage_engine.store.keys import KeyContext
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.trials.error_propagation import reduced_of, weighed
from collage_engine.trials.mixed_precision import (
    LEVELS,
    SMALLEST,
    burdens,
    left_full,
    mixed_candidates,
    products_of,
    to_mix,
)
from tests.support.candidates import data_of, row
from tests.support.graphs import GraphBuilder
from tests.support.imported import imported_model

DNN = in_bfloat16(ToolchainInstance(toolchain="dnn"))
ORT = in_bfloat16(ToolchainInstance(toolchain="ort"))
FULL = ToolchainInstance(toolchain="dnn")


def products() -> DataflowGraph:
    """matmul, relu, matmul, relu, matmul, relu: operators 0, 2 and 4 are products."""
    b = GraphBuilder()
    value = b.parameter()
    for _ in range(3):
        value = b.call("nn.relu", b.call("matmul", value, b.constant((10, 10))))
    return b.build(value)


GRAPH = products()
MODEL = imported_model(GRAPH)
EVERYTHING = tuple(range(6))


def record(
    instance: ToolchainInstance,
    nodes: Sequence[int],
    us: float = 10.0,
    error: float | None = 1e-3,
    **more: Any,
) -> CandidateRecord:
    made = make_candidate(GRAPH, instance, tuple(nodes), rule="region")
    cost = Cost(state="measured", median_us=us, max_rel_error=error)
    return row(made, **{"cost": cost, "key": f"key of {made.id}", **more})


def with_formats(one: CandidateRecord, takes: Mapping[int, str]) -> CandidateRecord:
    return msgspec.structs.replace(one, takes=dict(takes), id=f"{one.id}{sorted(takes)}")


def ids(sets: Sequence[Sequence[Candidate]]) -> list[list[str]]:
    return [[one.id for one in each] for each in sets]


# ---------------------------------------------------------------------- which products


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
    assert left_full([0, 1], {0: 0.0, 1: 0.0}, {0: 1.0, 1: 1.0}, 0.5) == frozenset()


def test_one_that_hardly_matters_does_not_hide_those_behind_it() -> None:
    # Most for its time, but next to no burden: it is rounded, and the search goes on.
    assert left_full([0, 1], {0: 1e-4, 1: 1.0}, {0: 1e-9, 1: 5.0}, 0.3) == {1}


@pytest.mark.parametrize("seed", range(30))
def test_the_share_is_kept_and_nothing_is_left_in_float32_in_vain(seed: int) -> None:
    draw = random.Random(seed)
    burden = {n: 10 ** draw.uniform(-2, 1) for n in range(12)}
    effort = {n: 10 ** draw.uniform(-1, 2) for n in burden}
    share = draw.uniform(0.05, 0.95)
    total = sum(burden.values())
    chosen = left_full(burden, burden, effort, share)
    left = sum(b for n, b in burden.items() if n not in chosen)
    tiny = sum(b for b in burden.values() if b < SMALLEST * total)
    assert left <= share * total + tiny
    assert all(left + burden[n] > share * total for n in chosen)


def test_places_are_told_as_ranges_and_read_again() -> None:
    bf16 = in_bfloat16(ToolchainInstance(toolchain="onednn"))
    kept = careful(bf16, [17, 0, 1, 2])
    assert ranges([17, 0, 1, 2]) == "0-2+17"
    assert kept.id == "onednn[precision=bf16,float32=0-2+17]"
    assert full_places(kept) == {0, 1, 2, 17}
    assert careful(kept, ()) == bf16 and full_places(bf16) == frozenset()


def test_burdens_are_errors_as_they_arrive() -> None:
    inside = products_of(MODEL)
    assert list(inside) == [0, 2, 4]
    records = [
        record(DNN, (0,)),
        record(ORT, (0, 1)),
        record(DNN, (2, 3)),
        record(DNN, EVERYTHING),
        record(DNN, (4,)),
    ]
    errors = {one.id: 1e-3 for one in records} | {records[1].id: 5e-4, records[2].id: 2e-3}
    del errors[records[4].id]
    found = burdens(inside, records, errors, {inside[0]: 2.0, inside[2]: 0.5})
    # Number 4 was not measured alone: the usual error, and carried on as it is.
    assert found == pytest.approx({0: 1e-6, 2: 1e-6, 4: ((5e-4 + 2e-3) / 2) ** 2})


# ---------------------------------------------------------------------- which partitions


def mixable(
    records: Sequence[CandidateRecord], cover: Sequence[str], operators: int, able: Sequence[str]
) -> list[list[Candidate]]:
    return to_mix(records, table_of(records), cover, operators, able)


def test_whole_models_and_the_covers_reduced_partitions_are_mixed() -> None:
    whole, other = record(DNN, EVERYTHING), record(ORT, EVERYTHING)
    half, rest = record(DNN, (0, 1)), record(FULL, (2, 3, 4, 5))
    records = [whole, other, half, rest, record(DNN, (2, 3, 4, 5))]
    found = mixable(records, [half.id, rest.id], 6, ["dnn"])
    # ort cannot, and what is float32 in the cover stays so.
    assert ids(found) == [[whole.id], [half.id]]
    assert ids(mixable(records, [], 6, ["dnn"])) == [[whole.id]]
    assert mixable(records, [half.id], 6, []) == []
    assert ids(mixable(records, [whole.id], 6, ["dnn"])) == [[whole.id]]  # not twice


def test_an_unable_toolchains_partition_is_stood_in_for_by_the_fastest_able_one() -> None:
    theirs = record(ORT, (0, 1))
    slow = record(msgspec.structs.replace(DNN, config=(("way", "b"), *DNN.config)), (0, 1), us=20)
    fast = record(DNN, (0, 1), us=15)
    for records in ([theirs, slow, fast], [fast, slow, theirs]):
        assert ids(mixable(records, [theirs.id], 6, ["dnn"])) == [[fast.id]]
        # An able one's own partition is what is in the cover, faster or not.
        assert ids(mixable(records, [slow.id], 6, ["dnn"])) == [[slow.id]]


def test_only_what_fits_the_cover_and_was_measured_stands_in() -> None:
    theirs = with_formats(record(ORT, (2, 3)), {1: "nhwc", 0: "nhwc"})
    plain = record(DNN, (2, 3))
    alike = with_formats(record(DNN, (2, 3)), {0: "nhwc", 1: "nhwc"})
    failed = record(DNN, (0, 1), cost=invalid("it crashed"))
    already = record(careful(DNN, [0]), (0, 1, 2, 3))
    ours = record(ORT, (0, 1))
    assert ids(mixable([theirs, plain, alike], [theirs.id], 6, ["dnn"])) == [[alike.id]]
    assert mixable([theirs, plain], [theirs.id], 6, ["dnn"]) == []
    assert mixable([ours, failed], [ours.id, "unknown"], 6, ["dnn"]) == []
    assert mixable([already], [already.id], 6, ["dnn"]) == []


# ---------------------------------------------------------------------- the new candidates


def mixed(
    partitions: Sequence[CandidateRecord],
    shares: Sequence[float],
    burden: Mapping[int, float],
    known: Sequence[CandidateRecord] = (),
) -> list[Candidate]:
    effort = dict.fromkeys(burden, 1.0)
    return mixed_candidates(
        MODEL,
        [one.id for one in (*partitions, *known)],
        partitions,
        shares,
        burden,
        effort,
        lambda form, instance: f"{instance.id} {len(form)}",
    )


def test_places_count_a_partitions_operators() -> None:
    old = record(DNN, (2, 3, 4, 5))
    (new,) = mixed([old], [0.5], {0: 9.0, 2: 1.0, 4: 3.0})
    # Operator 4 is the third one of the partition; what is outside of it has no say.
    assert new.instance.id == "dnn[precision=bf16,float32=2]"
    assert new.nodes == old.nodes and new.instance.precision == old.instance.precision
    assert new.protected and new.rule == "mixed"
    assert new.key.startswith(new.instance.id) and new.id != old.id


def test_formats_composites_and_device_stay() -> None:
    old = msgspec.structs.replace(
        record(DNN, (2, 3, 4)),
        takes={1: "nhwc"},
        gives={4: "nhwc"},
        device="cuda:0",
        composites=(("dnn.matmul", (2, 3)),),
    )
    (new,) = mixed([old], [0.5], {0: 9.0, 2: 1.0, 4: 3.0})
    assert (new.takes, new.gives, new.device) == ({1: "nhwc"}, {4: "nhwc"}, "cuda:0")
    assert new.composites == old.composites


def test_the_share_is_that_of_all_partitions_together() -> None:
    one, other = record(DNN, (0, 1)), record(DNN, (2, 3, 4, 5))
    burden = {0: 10.0, 2: 2.0, 4: 1.0}
    # All of the first would stay in float32: that is its float32 self, which there is already.
    assert mixed([one, other], [0.5], burden) == []
    (new,) = mixed([one, other], [0.1], burden)
    assert new.nodes == other.nodes and full_places(new.instance) == {0}


def test_equal_choices_are_offered_once_and_known_ones_not_again() -> None:
    whole = record(DNN, EVERYTHING)
    burden = {0: 1.0, 2: 1.5, 4: 4.0}
    found = mixed([whole], [0.7, 0.6, 0.2], burden)
    assert [full_places(one.instance) for one in found] == [{4}, {2, 4}]
    assert [
        full_places(one.instance)
        for one in mixed([whole], [0.7, 0.2], burden, [row(one, UNKNOWN) for one in found[:1]])
    ] == [{2, 4}]
    assert mixed([whole], [1.0], burden) == []  # nothing has to stay
    assert mixed([whole], [0.0], burden) == []  # all has to


# ---------------------------------------------------------------------- how much is asked of them

MENU = Menu(
    states=(),
    sources=(),
    candidates=(),
    costs=CostTable(),
    without_candidates={},
    keys=KeyContext(tvm_version="1", target="cpu", fingerprint="here"),
)
NOT_OPENED: Any = None
"""The stage asks how keys are made and measures nothing, so no model need be open."""
MEASURING = Measuring(NOT_OPENED, MENU, RunSettings(), {}, RunControl())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], list[float]]]:
    """Partitions and shares that ``_mixed`` asks for."""
    found: list[tuple[list[str], list[float]]] = []

    def note(model: Any, records: Any, parts: Any, shares: Any, *_: Any) -> list[CandidateRecord]:
        found.append(([one.id for one in parts], list(shares)))
        return []

    known = {"dnn": True, "ort": False}
    monkeypatch.setattr(stage_accuracy, "mixed_candidates", note)
    monkeypatch.setattr(
        stage_accuracy,
        "about",
        lambda name: ToolchainAbout(
            name=name, title=name, licence="MIT", mixes_precision=known[name]
        ),
    )
    return found


def ask(records: Sequence[CandidateRecord], errors: Mapping[tuple[str, ...], float]) -> None:
    candidates(list(records))._mixed({}, errors)


def candidates(records: list[CandidateRecord]) -> stage_accuracy._WiderCandidates:
    """The stage's candidates, where nothing is measured."""
    return stage_accuracy._WiderCandidates(
        MODEL, data_of(GRAPH, records), MEASURING, tolerance=1e-3, deadline=0.0
    )


def test_shares_follow_from_the_error_that_is_known_best(
    asked: list[tuple[list[str], list[float]]],
) -> None:
    whole = record(DNN, EVERYTHING, error=2e-3)
    half, rest = record(DNN, (0, 1), error=9e-3), record(FULL, (2, 3, 4, 5), error=0.0)
    ask([whole, half, rest], {(half.id, rest.id): 4e-3})
    # The whole model alone, a little worse on further samples; the cover's part by the cover's.
    # Shares fall.
    given: dict[str, list[float]] = {}
    for (name,), (share,) in asked:
        given.setdefault(name, []).append(share)
    assert given == {
        parts.id: pytest.approx([level * share for level in LEVELS])
        for parts, share in ((whole, (1 / 2.2) ** 2), (half, (1 / 4) ** 2))
    }
    asked.clear()
    ask([whole], {(whole.id,): 2.5e-3})  # run as a cover, on all samples
    assert asked == [([whole.id], [pytest.approx(level * 0.16)]) for level in LEVELS]


def test_what_keeps_the_tolerance_or_tells_nothing_is_not_mixed(
    asked: list[tuple[list[str], list[float]]],
) -> None:
    good, unknown = record(DNN, EVERYTHING, error=5e-4), record(DNN, EVERYTHING, error=None)
    half = record(DNN, (0, 1))
    ask([good], {})
    ask([unknown], {})
    ask([half], {(half.id, "another"): 9e-4})
    ask([half], {(half.id, "another"): float("inf")})
    assert asked == []
    # Within the tolerance alone, and over it as a cover on all samples.
    ask([good], {(good.id,): 2e-3})
    assert [parts for parts, _ in asked] == [[good.id]] * len(LEVELS)


def test_a_whole_model_within_the_tolerance_needs_no_more_in_float32() -> None:
    within = record(DNN, EVERYTHING, error=8e-4)
    near = record(DNN, EVERYTHING, error=9.5e-4, id="near")
    part = record(DNN, (0, 1), error=1e-5)
    wider = candidates([within, near, part])
    assert wider._suffices([near, within])
    # A little worse on further samples, it would break it; of a part the whole is not known.
    assert not wider._suffices([near, part])


def test_an_instance_that_leaves_products_in_float32_hands_over_as_its_origin() -> None:
    kept = careful(DNN, [0])
    constants = {
        "launch": 1.0,
        f"pair:{DNN.id}:tvm": 2.0,
        f"pair:{DNN.id}:{DNN.id}": 3.0,
        "pair:tvm:tvm": 4.0,
    }
    found = hand_overs(constants, [DNN, kept, ToolchainInstance(toolchain="tvm")])
    assert set(found) == {
        (DNN.id, "tvm", 2.0),
        (kept.id, "tvm", 2.0),
        ("tvm", "tvm", 4.0),
        (DNN.id, DNN.id, 3.0),
        (DNN.id, kept.id, 3.0),
        (kept.id, DNN.id, 3.0),
        (kept.id, kept.id, 3.0),
    }
    assert len(found) == len(set(found))


def test_mixed_candidates_count_as_reduced_and_a_whole_models_error_is_not_weighed() -> None:
    kept, full = record(careful(DNN, [0]), EVERYTHING), record(FULL, EVERYTHING)
    part = record(DNN, (0, 1))
    assert reduced_of([kept, full, part]) == [kept.id, part.id]
    factors = dict.fromkeys(range(len(GRAPH)), 3.0)
    found = weighed(GRAPH, [kept, part], table_of([kept, part]), factors)
    assert found == pytest.approx({kept.id: 1e-3, part.id: 3e-3})
