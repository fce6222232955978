"""``collage store``: what it prints and what it exits with."""

from __future__ import annotations

import json

import pytest

from collage_engine.cli.main import main
from collage_engine.records.cost import Cost
from collage_engine.store.measurement import Measurement
from collage_engine.store.store import Store
from tests.support.json_schemas import assert_fits


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))
    with Store() as made:
        made.put(Measurement(key="k", cost=Cost(state="measured", median_us=5.0), label="conv"))
        yield made


def test_info(store, capsys):
    assert main(["store", "info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert_fits("store", "info", found)
    assert found["measurements"] == 1 and found["path"] == str(store.path)
    assert main(["store", "info"]) == 0
    assert "measurements: 1" in capsys.readouterr().out


def test_export_clear_import(store, tmp_path):
    file = str(tmp_path / "all.jsonl")
    assert main(["store", "export", file]) == 0
    assert main(["store", "clear"]) == 0
    assert store.get("k") is None
    assert main(["store", "import", file]) == 0
    assert store.get("k").median_us == 5.0


def test_a_damaged_store_is_one_clear_sentence(store, capsys):
    store.close()
    store.path.write_bytes(b"scribble" * 2000)
    for end in ("-wal", "-shm"):
        store.path.with_name(store.path.name + end).unlink(missing_ok=True)
    assert main(["store", "info"]) == 1
    error = capsys.readouterr().err
    assert "is damaged" in error and "collage store clear" in error and "Traceback" not in error
    assert main(["store", "clear"]) == 0
    assert main(["store", "info"]) == 0
