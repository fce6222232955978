"""What ``--json`` prints fits what ``--schema`` prints; tests of commands check theirs, too."""

from __future__ import annotations

import json

import msgspec
import pytest

from collage_engine.cli.main import main
from collage_engine.cli.parser import build_parser
from collage_engine.cli.print_run import run_document
from collage_engine.cli.schemas import DOCUMENTS
from collage_engine.run.conformance import run as conformance
from collage_engine.run.conformance.run import Finding
from collage_engine.store.session_file import load_session
from tests.support.full_documents import SESSION, full_session
from tests.support.json_schemas import assert_fits


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    path = tmp_path_factory.mktemp("full") / "s.collage"
    path.write_bytes(full_session())
    return path


@pytest.mark.parametrize("session", [SESSION, None])
def test_runs_fit(full, session):
    for run in load_session(session or full).runs:
        document = json.loads(msgspec.json.encode(run_document(run)))
        assert_fits("place", "run", document)
        for damaged in ({**document, "more": 1}, {**document, "threads": "2"}):
            with pytest.raises(AssertionError):
                assert_fits("place", "run", damaged)


def test_answers_about_sessions_fit(full, capsys):
    assert main(["explain", str(SESSION), "0", "--json"]) == 0
    assert_fits("explain", "explanation", json.loads(capsys.readouterr().out))
    assert main(["compare", str(full), "1", "last", "--json"]) == 0
    assert_fits("compare", "comparison", json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(("names", "document"), [(["a"], "check"), (["a", "b"], "several checks")])
def test_checks_of_toolchains_fit(monkeypatch, names, document, capsys):
    found = [Finding("probe", "passed", "it is here"), Finding("instances", "failed", "none")]
    monkeypatch.setattr(conformance, "check_toolchain", lambda name, on_finding: found)
    assert main(["toolchains", "check", *names, "--json"]) == 1
    assert_fits("toolchains", document, json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("command", DOCUMENTS)
def test_every_command_prints_its_schemas_without_its_arguments(command, capsys):
    arguments = [command, "info"] if command == "store" else [command]
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([*arguments, "--schema"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out).keys() == DOCUMENTS[command].keys()
