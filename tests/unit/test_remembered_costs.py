"""What partitions took within models is known to later runs of other models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collage_engine.records.graph import ModelRecord
from collage_engine.records.settings import RunSettings
from collage_engine.run import remembered_costs
from collage_engine.run.remembered_costs import (
    MODELS_KEPT,
    PARTITIONS_KEPT,
    remember_observations,
    remembered_observations,
)
from collage_engine.store.store import Store
from collage_engine.trials.in_model_costs import Observation

SETTINGS = RunSettings(threads=1)


def seen(toolchain: str, count: int = 1) -> list[Observation]:
    """Partitions that were run within a model."""
    return [
        Observation(
            toolchain=toolchain,
            isolated_us=10.0 + k,
            in_model_us=12.0 + k,
            weight_bytes=64,
            value_bytes=32,
            share=0.1,
        )
        for k in range(count)
    ]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An empty store."""
    with Store(tmp_path / "store.sqlite") as opened:
        yield opened


def model(store: Store, sha256: str) -> Any:
    """An open model: its store and its record."""
    record = ModelRecord(path="m.onnx", sha256=sha256, nodes=2, weights_bytes=0, onnx_nodes=2)
    return SimpleNamespace(store=store, model=SimpleNamespace(record=record))


def toolchains(store: Store, settings: RunSettings = SETTINGS) -> list[str]:
    """The toolchains of what a run finds in the store."""
    return [one.toolchain for one in remembered_observations(model(store, "other"), settings)]


def test_what_one_model_showed_is_known_to_another_at_the_same_settings(store: Store) -> None:
    assert toolchains(store) == []
    remember_observations(model(store, "a"), SETTINGS, seen("tvm", 3))
    remember_observations(model(store, "b"), SETTINGS, seen("onednn"))
    assert toolchains(store) == ["tvm"] * 3 + ["onednn"]
    assert remembered_observations(model(store, "c"), SETTINGS)[-1] == seen("onednn")[0]
    assert toolchains(store, RunSettings(threads=2)) == []
    assert toolchains(store, RunSettings(threads=1, precision="bfloat16")) == []


def test_a_model_that_is_placed_again_replaces_what_it_showed_before(store: Store) -> None:
    for name in ("a", "b"):
        remember_observations(model(store, name), SETTINGS, seen(name))
    remember_observations(model(store, "a"), SETTINGS, seen("again"))
    assert toolchains(store) == ["b", "again"]
    remember_observations(model(store, "a"), SETTINGS, [])
    assert toolchains(store) == ["b", "again"]


def test_the_latest_models_and_some_partitions_of_each_are_kept(store: Store) -> None:
    for number in range(MODELS_KEPT + 2):
        many = seen(str(number), PARTITIONS_KEPT + 5)
        remember_observations(model(store, str(number)), SETTINGS, many)
    found = toolchains(store)
    assert set(found) == {str(number) for number in range(2, MODELS_KEPT + 2)}
    assert found.count("2") == PARTITIONS_KEPT


@pytest.mark.parametrize("value", [3, ["a"], [["a", [{"toolchain": 1}]]], {"a": []}])
def test_a_damaged_value_is_as_none(store: Store, value: Any) -> None:
    store.put_constant(remembered_costs._name(SETTINGS), value)
    assert toolchains(store) == []
    remember_observations(model(store, "a"), SETTINGS, seen("tvm"))
    assert toolchains(store) == ["tvm"]


def test_a_store_that_cannot_be_read_knows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"no database" * 500)
    with Store(path) as broken:
        assert toolchains(broken) == []
        remember_observations(model(broken, "a"), SETTINGS, seen("tvm"))
