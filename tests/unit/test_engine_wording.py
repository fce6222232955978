"""Sentences that several faces share are used, and filled with the fields that they name."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "collage_engine"
CATALOGUES = {"why", "runs", "report", "command_line", "constraints", "stages"}


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
    report = "".join(path.read_text() for path in (ROOT / "resources/report").glob("*.j2"))
    used["report"].update(name for name in templates("report") if f"say.{name}" in report)
    unused = {
        f"{catalogue}.{name}"
        for catalogue in CATALOGUES
        for name in templates(catalogue)
        if name not in used[catalogue]
    }
    assert not unused
