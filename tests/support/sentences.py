"""Finds sentences in source code: what users read is written in catalogues only.

``python -m tests.support.sentences`` lists the sentences of all errors, which stand where they are
raised, so that their wording can be reviewed in one place, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOGGING = {"debug", "info", "warning", "exception", "error", "critical"}
"""Calls whose texts go to the log of a process, which has English of its own."""


def texts(tree: ast.AST, raised: bool = False) -> Iterator[tuple[int, str]]:
    """Yields the texts of a module that are no docstrings, f-strings without their fields.

    Args:
        tree: The module, or a part of it.
        raised: Whether texts of exceptions count, too.

    Yields:
        Lines and texts.
    """
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif (isinstance(node, ast.Raise) and not raised) or _logs(node):
            skipped.update(id(inner) for inner in ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in skipped:
            skipped.update(id(part) for part in node.values)
            literal = [part.value for part in node.values if isinstance(part, ast.Constant)]
            yield node.lineno, " ".join(map(str, literal))
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in skipped:
            yield node.lineno, node.value


def _logs(node: ast.AST) -> bool:
    """Whether a node writes a line into the log of its process."""
    call = node.func if isinstance(node, ast.Call) else None
    return (
        isinstance(call, ast.Attribute)
        and call.attr in LOGGING
        and isinstance(call.value, ast.Name)
        and call.value.id in ("log", "logger", "_log", "_LOG")
    )


def sentences(tree: ast.AST, words: int, raised: bool = False) -> list[tuple[int, str]]:
    """Returns the texts of a module that are sentences.

    Args:
        tree: The module, or a part of it.
        words: From how many words on a text is one.
        raised: Whether texts of exceptions count, too.

    Returns:
        Lines and texts.
    """
    return [
        (line, text)
        for line, text in texts(tree, raised)
        if len([word for word in text.split() if word[0].isalpha()]) >= words
    ]


def errors() -> Iterator[tuple[str, int, str]]:
    """Yields the sentences of all exceptions: file, line, and text with … for its fields."""
    for path in sorted((ROOT / "collage_engine").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
                continue
            for argument in node.exc.args[:1]:
                text = _written(argument)
                if text:
                    yield str(path.relative_to(ROOT)), node.lineno, text


def _written(node: ast.expr) -> str:
    """Returns a text as it is written; fields of an f-string are dots."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
        )
    return ""


if __name__ == "__main__":
    for file, line, text in errors():
        print(f"{file}:{line}: {text}")
