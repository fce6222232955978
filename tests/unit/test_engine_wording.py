"""Sentences about runs and choices stand in ``collage_engine/wording``, to be reviewed there."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sentences import sentences

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "collage_engine"
CATALOGUES = {"why", "runs", "report", "command_line", "constraints", "stages"}
ROOMS = ("cli", "drawing", "planning", "report", "run", "search")
"""Rooms whose modules take what users read from the catalogues."""
ELSEWHERE = {
    *("cli/parser.py", "cli/options.py"),  # help texts and refusals stand beside the options
    "search/problem_json.py",  # says where a given document is malformed
    "drawing/svg.py",  # draws, in SVG
}
"""Modules with sentences of their own."""
ALSO = ("session/pins.py",)
MARKUP = set("{<\\")
"""Regular expressions, HTML and SVG have these characters; no sentence has them."""
SENTENCE = 4
"""Words from which on a text is a sentence; shorter ones are titles of columns and fields."""


def modules() -> list[str]:
    """The modules that have no sentences of their own, as paths below the engine's folder."""
    found = [p for room in ROOMS for p in (ENGINE / room).rglob("*.py")]
    names = {p.relative_to(ENGINE).as_posix() for p in found} | set(ALSO)
    return sorted(names - ELSEWHERE)


@pytest.mark.parametrize("module", modules())
def test_no_sentence_is_written_outside_the_catalogues(module: str) -> None:
    written = sentences(ast.parse((ENGINE / module).read_text()), SENTENCE)
    found = [(line, text) for line, text in written if not MARKUP & set(text)]
    assert not found, "write it in collage_engine/wording"


def test_the_why_panel_and_the_report_take_their_sentences_from_the_catalogues() -> None:
    panel = (ROOT / "collage_gui/panels/why.py").read_text()
    assert not [text for _, text in sentences(ast.parse(panel), SENTENCE) if "{" not in text]
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
    assert [line for line, _ in sentences(module, SENTENCE)] == [2, 4]


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
                if room == "collage_engine.wording" and catalogue in CATALOGUES:
                    yield from ((catalogue, alias.name, None) for alias in node.names)
        filled: dict[int, set[str]] = {}
        for node in ast.walk(tree):
            call = node.func if isinstance(node, ast.Call) else None
            if isinstance(call, ast.Attribute) and call.attr == "format":
                filled[id(call.value)] = {keyword.arg or "" for keyword in node.keywords}
        for node in ast.walk(tree):
            owner = node.value if isinstance(node, ast.Attribute) else None
            if isinstance(owner, ast.Name) and aliases.get(owner.id) in CATALOGUES:
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
