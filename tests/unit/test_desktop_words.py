"""Fixed sentences of the desktop stand in one catalogue, where their wording can be reviewed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

GUI = Path(__file__).resolve().parents[2] / "collage_gui"
CATALOGUES = {"words.py", "actions.py"}
SHOWING = {
    *("setText", "setToolTip", "setPlaceholderText", "setAccessibleName", "setStatusTip"),
    *("setAccessibleDescription", "setWindowTitle", "setInformativeText", "show_message"),
    *("setHeaderLabels", "addAction", "addItem", "addTab", "addButton", "addMenu", "addRow"),
    *("setSpecialValueText", "setTitle", "getText", "getOpenFileName", "getSaveFileName"),
    *("QLabel", "QPushButton", "QCheckBox", "QLineEdit", "QAction", "QGroupBox", "QMenu"),
    *("BarChart", "Table", "Column", "ElidedLabel", "PanelPlace"),
}
"""Calls whose texts a user sees or a screen reader speaks."""
SENTENCE = 3
"""Words from which on a text is a sentence; shorter ones are names of fields and columns."""


def sentences(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The texts of three words or more that a module hands to such calls, with their lines."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else None
        name = call.func.id if isinstance(call.func, ast.Name) else name
        if name not in SHOWING:
            continue
        for part in (*call.args, *(keyword.value for keyword in call.keywords)):
            for text in ast.walk(part):
                if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
                    continue
                if len([word for word in text.value.split() if word[0].isalpha()]) >= SENTENCE:
                    yield text.lineno, text.value


@pytest.mark.parametrize(
    "path", sorted(p for p in GUI.rglob("*.py") if p.name not in CATALOGUES), ids=lambda p: p.stem
)
def test_no_sentence_is_written_outside_the_catalogue(path: Path) -> None:
    found = list(sentences(ast.parse(path.read_text())))
    assert not found, "write it in collage_gui/words.py"


def test_the_search_for_sentences_finds_what_it_must() -> None:
    text = (
        "label.setText(f'{name} has changed on disk')\n"
        "box = QLabel('A sentence of words', wordWrap=True)\n"
        "label.setText('Run')\nlog('not shown to a user')"
    )
    assert [line for line, _ in sentences(ast.parse(text))] == [1, 2]


def test_every_sentence_of_the_catalogue_is_used() -> None:
    names = [
        target.id
        for node in ast.parse((GUI / "words.py").read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    used = "".join(p.read_text() for p in GUI.rglob("*.py") if p.name != "words.py")
    assert names and not [name for name in names if f"words.{name}" not in used]
