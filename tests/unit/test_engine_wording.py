"""Sentences about runs and choices stand in ``collage_engine/wording``, to be reviewed there."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "collage_engine"
CATALOGUES = {"why", "runs", "report", "command_line"}
WRITTEN_WITH = (
    *("search/explain.py", "planning/explanation.py", "planning/device_reasons.py"),
    *("drawing/figures.py", "drawing/accuracy.py", "drawing/facts.py", "drawing/objective.py"),
    *("drawing/roofline.py", "drawing/memory_figures.py", "drawing/latencies.py"),
    *("report/sections.py", "cli/print_run.py", "cli/output.py"),
)
"""Modules that take all that they say from the catalogues."""
SENTENCE = 4
"""Words from which on a text is a sentence; shorter ones are titles of columns and fields."""


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The texts of a module that are no docstrings, f-strings without their fields."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.Raise):
            skipped.update(id(inner) for inner in ast.walk(node))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
            literal = [part.value for part in node.values if isinstance(part, ast.Constant)]
            yield node.lineno, " ".join(map(str, literal))
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in skipped:
            yield node.lineno, node.value


def sentences(tree: ast.Module) -> list[tuple[int, str]]:
    """The texts of a module that are sentences, with their lines."""
    return [
        (line, text)
        for line, text in texts(tree)
        if len([word for word in text.split() if word[0].isalpha()]) >= SENTENCE
    ]


@pytest.mark.parametrize("module", WRITTEN_WITH)
def test_no_sentence_is_written_outside_the_catalogues(module: str) -> None:
    found = sentences(ast.parse((ENGINE / module).read_text()))
    assert not found, "write it in collage_engine/wording"


def test_the_why_panel_and_the_report_take_their_sentences_from_the_catalogues() -> None:
    panel = (ROOT / "collage_gui/panels/why.py").read_text()
    assert not [text for _, text in sentences(ast.parse(panel)) if "{" not in text]
    template = (ROOT / "resources/report/report.html.j2").read_text()
    body = template[template.index("<body>") :]
    written = []
    for part in body.replace("%}", "{%").replace("}}", "{{").split("{{")[::2]:
        for text in part.split("{%")[::2]:
            written += [piece.partition(">")[2] for piece in text.split("<")]
    assert not [text for text in written if len(text.split()) > 1], "write it in wording/report.py"


def test_the_search_for_sentences_finds_what_it_must() -> None:
    module = ast.parse(
        '"""Not a sentence for users."""\n'
        "say(f'{name} has changed on disk')\nword = 'two words'\n"
        "text = 'A sentence of words'\nraise ValueError('this is not looked at here')"
    )
    assert [line for line, _ in sentences(module)] == [2, 4]


def templates(name: str) -> dict[str, str]:
    """The sentences of a catalogue, by the names of their constants."""
    module = __import__(f"collage_engine.wording.{name}", fromlist=["*"])
    return {key: value for key, value in vars(module).items() if key.isupper()}


def uses() -> Iterator[tuple[str, str, set[str] | None]]:
    """Every use of a sentence: catalogue, name, and the fields that it is filled with if any."""
    for path in [*ENGINE.rglob("*.py"), *(ROOT / "collage_gui").rglob("*.py")]:
        tree = ast.parse(path.read_text())
        aliases = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "collage_engine.wording":
                aliases.update({alias.asname or alias.name: alias.name for alias in node.names})
            if isinstance(node, ast.ImportFrom) and node.module:
                room, _, catalogue = node.module.rpartition(".")
                if room == "collage_engine.wording":
                    yield from ((catalogue, alias.name, None) for alias in node.names)
        filled: dict[int, set[str]] = {}
        for node in ast.walk(tree):
            call = node.func if isinstance(node, ast.Call) else None
            if isinstance(call, ast.Attribute) and call.attr == "format":
                filled[id(call.value)] = {keyword.arg or "" for keyword in node.keywords}
        for node in ast.walk(tree):
            owner = node.value if isinstance(node, ast.Attribute) else None
            if isinstance(owner, ast.Name) and owner.id in aliases:
                yield aliases[owner.id], node.attr, filled.get(id(node))


def test_every_sentence_is_used_and_filled_with_its_fields() -> None:
    used: dict[str, set[str]] = {name: set() for name in CATALOGUES}
    for catalogue, name, fields in uses():
        used[catalogue].add(name)
        template = templates(catalogue)[name]
        if fields is not None and isinstance(template, str):
            wanted = {field for _, field, _, _ in string.Formatter().parse(template) if field}
            assert wanted <= fields, (name, wanted, fields)
    report = (ROOT / "resources/report/report.html.j2").read_text()
    used["report"].update(name for name in templates("report") if f"say.{name}" in report)
    unused = {
        f"{catalogue}.{name}"
        for catalogue in CATALOGUES
        for name in templates(catalogue)
        if name not in used[catalogue]
    }
    assert not unused
