"""The cover that a confirmation chose takes part in later runs of the same model and settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from collage_engine.partition.candidate import make_candidate
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import UNKNOWN, Cost
from collage_engine.records.graph import ModelRecord
from collage_engine.records.pin import Pin
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.best_cover import remember, remembered_cover
from collage_engine.run.problem_data import ProblemData
from collage_engine.store.store import Store
from collage_engine.trials.contender import Contender
from tests.support.candidates import data_of, row
from tests.support.graphs import chain

GRAPH = chain("nn.relu", "nn.relu")
MADE = {
    f"{name}{nodes}": make_candidate(GRAPH, ToolchainInstance(toolchain=name), nodes, rule="region")
    for name in ("a", "b")
    for nodes in ((0,), (1,), (0, 1))
}
PARTS = (MADE["a(0,)"], MADE["b(1,)"])
OTHER = (MADE["b(0,)"], MADE["a(1,)"])
WHOLE = (MADE["a(0, 1)"],)


def a_run(**settings: Any) -> ProblemData:
    """All candidates, measured."""
    rows = [
        row(made, Cost(state="measured", median_us=10.0), key=made.id) for made in MADE.values()
    ]
    return data_of(GRAPH, rows, settings=RunSettings(**({"threads": 1} | settings)))


def ids(cover: tuple[Candidate, ...]) -> list[str]:
    """The ids of a cover's candidates."""
    return [candidate.id for candidate in cover]


def known(opened: Any) -> list[str]:
    """What a run finds in the store."""
    return ids(remembered_cover(opened, a_run()))


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    """An open model: its store and its record."""
    record = ModelRecord(path="m.onnx", sha256="m", nodes=2, weights_bytes=0, onnx_nodes=2)
    with Store(tmp_path / "store.sqlite") as store:
        yield SimpleNamespace(store=store, model=SimpleNamespace(record=record))


def confirmed(
    winner: tuple[Candidate, ...], *others: tuple[Candidate, ...], tied: bool = False
) -> Any:
    """A confirmation; whatever has one partition is a baseline."""

    def result(cover: tuple[Candidate, ...]) -> Any:
        kind = "collage" if len(cover) > 1 else "whole-model"
        contender = Contender(name=f"{kind} {cover[0].id}", kind=kind, cover=cover)
        return SimpleNamespace(contender=contender, measured_us=20.0)

    results = [result(cover) for cover in (winner, *others)]
    names = [one.contender.name for one in results[1:]] if tied else []
    return cast(
        "Any", SimpleNamespace(winner=results[0], results=tuple(results), tied=tuple(names))
    )


def test_a_cover_that_won_is_known_to_later_runs_with_the_same_settings(opened: Any) -> None:
    assert not known(opened)
    remember(opened, a_run(), confirmed(PARTS, WHOLE))
    assert known(opened) == ids(PARTS)
    assert remembered_cover(opened, a_run(threads=2)) == ()
    assert remembered_cover(opened, a_run(objective="throughput")) == ()
    other = msgspec.structs.replace(opened.model.record, shapes={"x": (3, 4)})
    changed = SimpleNamespace(store=opened.store, model=SimpleNamespace(record=other))
    assert remembered_cover(cast("Any", changed), a_run()) == ()


def test_it_stays_while_it_is_tied_or_not_timed_and_goes_where_it_clearly_lost(opened: Any) -> None:
    remember(opened, a_run(), confirmed(PARTS, WHOLE))
    remember(opened, a_run(), confirmed(WHOLE, PARTS, tied=True))
    assert known(opened) == ids(PARTS)
    remember(opened, a_run(), confirmed(WHOLE))
    assert known(opened) == ids(PARTS), "there was no time for it"
    remember(opened, a_run(), confirmed(WHOLE, PARTS))
    assert known(opened) == ids(PARTS), "once may be an unlucky process"
    remember(opened, a_run(), confirmed(WHOLE, PARTS, tied=True))
    remember(opened, a_run(), confirmed(WHOLE, PARTS))
    assert known(opened) == ids(PARTS), "a tie came between"
    remember(opened, a_run(), confirmed(WHOLE))
    remember(opened, a_run(), confirmed(WHOLE, PARTS))
    assert not known(opened)


def test_a_tie_of_another_cover_does_not_take_its_place_unless_it_lost(opened: Any) -> None:
    remember(opened, a_run(), confirmed(PARTS, WHOLE))
    both = confirmed(WHOLE, OTHER, PARTS, tied=True)
    remember(opened, a_run(), both)
    assert known(opened) == ids(PARTS), "all are tied"
    remember(opened, a_run(), confirmed(WHOLE, OTHER, tied=True))
    assert known(opened) == ids(PARTS), "there was no time for it"
    both.tied = both.tied[:1]
    remember(opened, a_run(), both)
    remember(opened, a_run(), both)
    assert known(opened) == ids(OTHER), "it was slower than both, twice"
    remember(opened, a_run(), confirmed(PARTS, OTHER, tied=True))
    assert known(opened) == ids(PARTS), "it won"


def test_what_is_no_cover_of_this_run_takes_no_part(opened: Any) -> None:
    remember(opened, a_run(), confirmed(PARTS))
    data = a_run()
    pins = (Pin(kind="on", nodes=(1,), toolchain="a"),)
    assert remembered_cover(opened, replace(data, pins=pins)) == (), "a pin forbids it"
    unknown = {MADE["a(0,)"].id: UNKNOWN}
    assert remembered_cover(opened, data.with_costs(data.costs.with_isolated(unknown))) == ()
    fewer = [c for c in data.candidates if c.instance.toolchain != "b"]
    assert remembered_cover(opened, data.with_candidates(fewer, data.costs)) == ()


@pytest.mark.parametrize(
    "value",
    [
        "text",
        7,
        {"a": 1},
        ["?"],
        {"cover": 3},
        {"cover": [1, None]},
        {"cover": ["?"]},
        {"cover": [], "lost": -1},
        {"cover": [MADE["a(0,)"].id]},
    ],
)
def test_a_store_that_holds_something_else_is_no_cover(opened: Any, value: object) -> None:
    remember(opened, a_run(), confirmed(PARTS))
    with opened.store._writing() as database:
        (name,) = (r[0] for r in database.execute("select name from constants").fetchall())
    opened.store.put_constant(name, value)
    assert not known(opened)
