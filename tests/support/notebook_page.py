"""Runs the notebook of ``resources/examples``, and returns it as a page as Jupyter shows it."""

from __future__ import annotations

import ast
import html
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "resources" / "examples" / "place_a_model.ipynb"
END = "<!-- end of a cell -->"
SHOW = """
def _show(value):
    shown = getattr(value, "_repr_html_", None)
    print(shown() if shown else f"<pre>{_html.escape(repr(value))}</pre>")
import html as _html
"""
"""What Jupyter does with the value of a cell's last line."""


def run_notebook(folder: Path, cache: Path) -> tuple[str, str]:
    """Run the cells in a process of its own, since they load an artifact.

    Args:
        folder: Where it runs; what it writes lies there.
        cache: The cache folder.

    Returns:
        The page, and what the cells wrote to standard error.
    """
    (folder / "resources").symlink_to(NOTEBOOK.parents[1])
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    script = SHOW
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"])).body
        if isinstance(body[-1], ast.Expr):
            shown = ast.parse("_show(None)").body[0]
            assert isinstance(shown, ast.Expr) and isinstance(shown.value, ast.Call)
            shown.value.args = [body[-1].value]
            body[-1] = shown
        lines = (ast.unparse(ast.fix_missing_locations(each)) for each in body)
        script += "\n".join([*lines, f"print({END!r})\n"])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLLAGE_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    outputs = iter(done.stdout.split(END))
    page = ["<!doctype html><meta charset=utf-8><title>Place a model</title>"]
    for cell in cells:
        source = html.escape("".join(cell["source"]))
        page.append(f"<pre>{source}</pre>")
        if cell["cell_type"] == "code":
            page.append(f"<div>{next(outputs)}</div>")
    return "\n".join(page), done.stderr
