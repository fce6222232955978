"""What each toolchain alone becomes under pins, which enters the race of a pinned run first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collage_engine.model.importer import import_onnx
from collage_engine.partition.rules import CandidateSource
from collage_engine.records.pin import Pin
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.trials.baselines import pinned_cover, pinned_covers
from tests.support.written import written

Cover = list[tuple[str, tuple[int, ...]]]
REFUSED = 3
"""The operator that the third toolchain does not take."""


def covers(*pins: Pin, places: tuple[int, ...] = ()) -> list[Cover]:
    """The covers of a chain of four operators, each as (toolchain, operators).

    With ``places`` it is the one cover that another one becomes, whose toolchains these are.
    """
    model = import_onnx(
        written("(float[1,8] x) => (y) { a = Relu(x) b = Exp(a) c = Tanh(b) y = Abs(c) }", {})
    )
    graph = model.graph

    def source(name: str, *refused: int) -> CandidateSource:
        nodes = {number for number in refused}
        return CandidateSource(
            ToolchainInstance(toolchain=name), None, lambda i: "no" if i in nodes else None
        )

    catalog: Any = SimpleNamespace(sources=(source("a"), source("b"), source("c", REFUSED)))
    calls = graph
    if places:
        found = [one for one in [pinned_cover(calls, catalog, pins, places)] if one is not None]
    else:
        found = pinned_covers(calls, catalog, pins)
    assert {(one.name, one.kind) for one in found} <= {("collage", "collage")}
    return [[(part.instance.toolchain, part.nodes) for part in one.cover] for one in found]


def test_each_toolchain_runs_what_no_pin_gives_to_another() -> None:
    assert covers(Pin(kind="on", nodes=(1,), toolchain="b")) == [
        [("a", (0,)), ("b", (1,)), ("a", (2, 3))],
        [("b", (0, 1, 2, 3))],
    ]


def test_a_toolchain_that_lacks_an_operator_is_there_where_a_pin_gives_it_to_another() -> None:
    found = covers(Pin(kind="on", nodes=(REFUSED,), toolchain="a"))
    assert [("c", (0, 1, 2)), ("a", (3,))] in found
    assert covers(Pin(kind="on", nodes=(REFUSED,), toolchain="c")) == []


@pytest.mark.parametrize("kind", ["exactly", "together"])
def test_a_pin_that_names_no_toolchain_changes_no_owner(kind: Any) -> None:
    alone = [[("a", (0, 1, 2, 3))], [("b", (0, 1, 2, 3))]]
    assert covers(Pin(kind=kind, nodes=(1, 2))) == alone


def test_what_may_not_run_on_a_toolchain_runs_on_the_first_other_one() -> None:
    assert covers(Pin(kind="never", nodes=(0,), toolchain="b")) == [
        [("a", (0, 1, 2, 3))],
        [("a", (0,)), ("b", (1, 2, 3))],
    ]


def test_a_mix_keeps_its_toolchains_but_where_a_pin_says_otherwise() -> None:
    on_b = Pin(kind="on", nodes=(0,), toolchain="b")
    assert covers(on_b, places=(0, 0, 1, 1)) == [[("b", (0,)), ("a", (1,)), ("b", (2, 3))]]
    on_a = Pin(kind="on", nodes=(2, 3), toolchain="a")
    assert covers(on_a, places=(0, 0, 1, 1)) == [[("a", (0, 1, 2, 3))]]
