"""``collage search`` as a tool of its own: pipes, time limits, schemas."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from collage_engine.cli.main import main
from collage_engine.search.problem_json import main_search, read_problem
from collage_engine.support.files import resource
from tests.support.json_schemas import assert_fits

EXAMPLE = resource("search/example.json").read_bytes()


def collage(
    capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0
) -> tuple[str, str]:
    assert main(["search", *arguments]) == status
    shown = capsys.readouterr()
    return shown.out, shown.err


@pytest.fixture
def example(tmp_path: Path) -> str:
    path = tmp_path / "problem.json"
    path.write_bytes(EXAMPLE)
    return str(path)


def test_the_example_shows_every_part_of_a_problem() -> None:
    problem = read_problem(EXAMPLE)
    assert problem.pins and problem.limits and problem.priority
    assert problem.transitions.pairs and problem.transitions.formats
    assert {c.state for c in problem.candidates} == {"measured", "unknown", "invalid"}
    answer = main_search(EXAMPLE)
    assert answer["optimal"] and answer["cover"]
    assert_fits("search", "problem", json.loads(EXAMPLE))
    assert_fits("search", "answer", answer)


def test_a_problem_comes_from_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, example: str
) -> None:
    from_file, _ = collage(capsys, example, "--json")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(EXAMPLE)))
    piped, _ = collage(capsys, "-", "--json")
    one, other = json.loads(from_file), json.loads(piped)
    assert one.pop("seconds") >= 0 and other.pop("seconds") >= 0 and one == other
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"nodes": 7}')))
    _, said = collage(capsys, "-", status=2)
    assert said.startswith("collage: standard input: the problem: ") and "$.nodes" in said


def test_ranked_covers_are_listed(capsys: pytest.CaptureFixture[str], example: str) -> None:
    answer = json.loads(collage(capsys, example, "--json", "--k-best", "3")[0])
    ranked = answer["ranked_covers"]
    assert len(ranked) == 3 and ranked[0]["cover"] == answer["cover"]
    costs = [cover["cost_us"] for cover in ranked]
    assert costs == sorted(costs) and ranked[0]["regret_us"] == 0
    words, _ = collage(capsys, example, "--k-best", "3")
    assert len([line for line in words.splitlines() if line[:2] in ("1.", "2.", "3.")]) == 3


def test_the_schemas_are_those_in_the_resources(capsys: pytest.CaptureFixture[str]) -> None:
    """After a wanted change: ``collage search --schema > resources/search/schema.json``."""
    with pytest.raises(SystemExit) as ended:
        main(["search", "--schema"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert resource("search/schema.json").read_text() == shown


def test_wrong_usage_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    said = collage(capsys, "none.json", status=2)[1]
    assert "none.json: No such file or directory" in said
