"""The public Python interface from a model to an artifact, with TVM alone."""

from __future__ import annotations

import pytest

from collage_engine import api
from collage_engine.records.event import Stage
from tests import zoo
from tests.support.caches import fresh_cache


def api_graph(model: object) -> object:
    with api.open_model(model) as session:  # type: ignore[arg-type]
        return session.graph


@pytest.mark.slow
def test_from_a_model_to_an_artifact(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(fresh_cache(tmp_path / "cache")))
    settings = api.RunSettings(
        toolchains=("tvm",), budget_s=10, threads=1, in_place=False, confirmation="quick"
    )
    model = tmp_path / "tiny.onnx"
    model.write_bytes(zoo.build("tiny").SerializeToString())
    stages: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, Stage) and event.done:
            stages.append(event.stage)

    with api.open_model(model, listener=listen) as session:
        candidates = session.candidates(settings)
        assert candidates and all(c.cost.state == "unknown" for c in candidates)
        session.pin("exp=tvm")
        run = session.place(settings, out=tmp_path / "artifact")
        assert run.placement is not None and run.placement.measured_us
        assert {"measure", "search", "confirm", "export"} <= set(stages)
        assert session.runs == (run,)
        assert session.explain("exp").words
        session.save(tmp_path / "tiny.collage")
    assert api.run_artifact(tmp_path / "artifact")["max_rel_error"] < 1e-4
    with api.load_session(tmp_path / "tiny.collage") as session:
        session.export(tmp_path / "again")
    assert api.run_artifact(tmp_path / "again", benchmark=True)["median_us"] > 0

    def broken(event: object) -> None:
        raise ValueError("the bar is broken")

    proto = zoo.build("tiny")
    with api.open_model(proto, listener=broken) as session:
        assert session.graph == api_graph(model)
        assert session.place(settings).placement is not None
        assert len(session.runs) == 1, "a listener that fails loses no run"
