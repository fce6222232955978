"""What the command line prints: complete names, whole lines, nothing wider than the terminal.

Progress: steady lines on a terminal, one line a stage elsewhere.

``collage store``: what it prints and what it exits with.

What comes out of a file never moves a terminal's cursor, sets its title or forges a line.

Text from files in tables that spreadsheets open, and in the log.

What ``--json`` prints fits what ``--schema`` prints; tests of commands check theirs, too.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re

import msgspec
import pytest
from rich.console import Console

from collage_engine.cli import output
from collage_engine.cli.main import main
from collage_engine.cli.parser import build_parser
from collage_engine.cli.print_run import run_document
from collage_engine.cli.schemas import DOCUMENTS
from collage_engine.cli.screen import as_text, complain, say, table
from collage_engine.drawing.progress import ProgressReport
from collage_engine.machine.logs import PrintableFormatter
from collage_engine.records.answers import Alternative, ExplainAnswer
from collage_engine.records.candidate import Cost
from collage_engine.records.event import Log, Progress, Stage
from collage_engine.run.conformance import run as conformance
from collage_engine.run.conformance.run import Finding
from collage_engine.store.session_file import load_session
from collage_engine.store.store import Measurement, Store
from collage_engine.support.text import csv_table, plain_cell, printable
from collage_engine.toolchains.runtime.kept_files import digest_of, keep_kernel
from tests.support.full_documents import SESSION, full_session
from tests.support.json_schemas import assert_fits


@pytest.fixture(autouse=True)
def no_titles_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toolchains have no titles here, whatever other tests taught the palette."""
    monkeypatch.setattr("collage_engine.wording.titles._learned", {})


def test_an_explanation_is_a_table_of_the_best_choice_of_each_toolchain(capsys):
    lines = (
        Alternative(toolchain="tvm", status="chosen", operators="Conv", here_us=3.0),
        Alternative(toolchain="onednn", status="slower", here_us=2.0, whole_us=0.5),
        Alternative(toolchain="onednn[x=1]", status="slower", here_us=9.0, whole_us=9.0),
        Alternative(toolchain="openblas", status="unmeasured", whole_us=4.0, reason="no time"),
        Alternative(toolchain="tvm[y=2]", status="tied", here_us=3.0, whole_us=-0.1),
        Alternative(toolchain="mkl", status="invalid", reason="it crashed [signal 11]"),
    )
    output.print_explanation(ExplainAnswer(words=("A [b] c.",), alternatives=lines))
    said = capsys.readouterr().out
    assert said.startswith("A [b] c.\n")
    rows = [line.split() for line in said.splitlines()[3:8]]
    assert rows[0][:3] == ["→", "tvm", "Conv"]
    assert [row[0] for row in rows[1:]] == ["onednn", "openblas", "tvm", "mkl"]
    assert "9.00" not in said, "of a toolchain the best choice is enough"
    assert "+0.500 µs" in said and "≥ +4.00 µs" in said and "−0.100 µs" in said
    assert "not measured: no time" in said and "cannot run: it crashed [signal 11]" in said


EVENTS = [
    Stage(stage="measure"),
    Log(level="warning", text="busy [really]"),
    Progress(stage="measure", done=3, total=12345, now="nn.conv2d+" * 20, rate=0.5, left_s=3000.0),
    Stage(stage="measure", done=True, seconds=2.0, detail="7 measured [all]"),
]


def shown(terminal: bool, width: int) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, highlight=False)
    with ProgressReport(console) as report:
        for event in EVENTS:
            report("d", event)
            if terminal:
                report._bars.refresh()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())


def test_on_a_terminal_a_stage_is_one_line_however_long_its_text():
    text = shown(True, 80)
    lines = text.replace("\r", "\n").split("\n")
    assert max(map(len, lines)) <= 80
    assert "3/12345" in text and "50 min left" in text
    assert "7 measured [all]" in text and "busy [really]" in text


def test_into_a_file_it_is_one_line_a_stage():
    assert shown(False, 500) == "busy [really]\nMeasuring (2.0 s): 7 measured [all]\n"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("COLLAGE_BUILD_DIR", raising=False)
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


def test_compiled_kernels_are_counted_and_cleared(store, capsys):
    keep_kernel(digest_of("kernel"), bytes(1000))
    assert main(["store", "info"]) == 0
    assert "compiled kernels: 1, 1.01 KiB" in capsys.readouterr().out
    assert main(["store", "clear"]) == 0
    assert "1 compiled kernel removed" in capsys.readouterr().out
    assert store.info().measurements == 0
    assert main(["store", "info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"] == 0


HOSTILE = "conv\x1b]0;PWNED\x07\x9b31m\u202eevil\x7f"


def controls(text: str) -> set[str]:
    return {c for c in text if ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or c == "\u202e"}


def test_every_control_character_is_written_as_an_escape() -> None:
    assert printable(HOSTILE) == r"conv\x1b]0;PWNED\x07\x9b31m\u202eevil\x7f"
    assert printable("a\nb\tc") == r"a\x0ab\x09c"
    assert printable("a\nb\tc", keep_lines=True) == "a\nb\tc"
    assert printable("häßlich µs → 模型 😀") == "häßlich µs → 模型 😀"


def test_what_the_command_line_prints_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"node {HOSTILE}\nsecond line")
    complain(f"collage: {HOSTILE}")
    printed = as_text(table([{"name": f"{HOSTILE}\nforged"}], cut=("name",)), 200)
    shown = capsys.readouterr()
    for text in (shown.out, shown.err, printed):
        assert controls(text) == {"\n"} and "PWNED" in text
    assert len(printed.splitlines()) == 2


@pytest.mark.parametrize(
    "arguments",
    [[HOSTILE], ["explain", "a", "b", HOSTILE], ["place", "m", "-o", "o", "--budget", HOSTILE]],
)
def test_names_of_files_in_a_wrong_command_are_printable(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    said = capsys.readouterr().err
    assert controls(said) == {"\n"} and "PWNED" in said


def test_the_log_shows_no_escape_sequence():
    record = logging.LogRecord("x", logging.INFO, "", 0, "node %s", (HOSTILE,), None)
    assert "\x1b" not in PrintableFormatter("%(message)s").format(record)


@pytest.mark.parametrize(
    "text", ["=cmd|' /C calc'!A0", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\n=1", "＝1+1"]
)
def test_a_cell_that_a_spreadsheet_would_run_is_text(text):
    assert plain_cell(text)[0] == "'"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_no_separator_of_a_spreadsheet_makes_a_cell_out_of_a_part_of_a_name(separator):
    names = ["conv;=1+1", "conv\t=1+1", 'conv";"=1+1', "conv,=1+1", "conv\n=1+1", "conv; +1+1"]
    for first in (True, False):
        cells = [[name, -1.5] if first else [-1.5, name] for name in names]
        text = csv_table(["a", "b"], cells)
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            assert not any(cell.lstrip(' "').startswith(("=", "+")) for cell in row), row


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
    for arguments in (["check", *names, "--json"], ["--json", "check", *names]):
        assert main(["toolchains", *arguments]) == 1
        assert_fits("toolchains", document, json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("command", DOCUMENTS)
def test_every_command_prints_its_schemas_without_its_arguments(command, capsys):
    arguments = [command, "info"] if command == "store" else [command]
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([*arguments, "--schema"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out).keys() == DOCUMENTS[command].keys()
