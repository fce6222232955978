"""Sentences of the desktop stand in one catalogue, where their wording can be reviewed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.sentences import sentences

GUI = Path(__file__).resolve().parents[2] / "collage_gui"
CATALOGUES = {"words.py", "actions.py"}
COMMAND_LINE = {"app.py"}
"""The help texts of ``collage-explorer``'s options stand beside the options."""
SENTENCE = 3
"""Words from which on a text is a sentence; shorter ones are names of fields and columns."""
MARKUP = set("{<")
"""Style sheets have braces, HTML has angle brackets; no sentence has them."""


@pytest.mark.parametrize(
    "path",
    sorted(p for p in GUI.rglob("*.py") if p.name not in CATALOGUES | COMMAND_LINE),
    ids=lambda p: p.stem,
)
def test_no_sentence_is_written_outside_the_catalogue(path: Path) -> None:
    written = sentences(ast.parse(path.read_text()), SENTENCE, raised=True)
    found = [(line, text) for line, text in written if not MARKUP & set(text)]
    assert not found, "write it in collage_gui/words.py"


def test_every_sentence_of_the_catalogue_is_used() -> None:
    catalogue = ast.parse((GUI / "words.py").read_text())
    names = [node.name for node in catalogue.body if isinstance(node, ast.FunctionDef)]
    for node in catalogue.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    public = [name for name in names if not name.startswith("_")]
    used = "".join(p.read_text() for p in GUI.rglob("*.py") if p.name != "words.py")
    assert public and not [name for name in public if f"words.{name}" not in used]
