"""Runs the notebook of ``resources/examples``, and returns what Jupyter would show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "resources" / "examples" / "place_a_model.ipynb"
END = "<!-- end of a cell -->"
RUN = f"""
import ast, html, json, sys
def show(value):
    shown = getattr(value, "_repr_html_", lambda: f"<pre>{{html.escape(repr(value))}}</pre>")
    print("" if value is None else shown())
sys.displayhook = show
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        body = ast.Interactive(ast.parse("".join(cell["source"])).body)
        exec(compile(body, "cell", "single"), globals())
        print({END!r})
"""
"""Runs the cells, and shows the values of expressions as Jupyter does."""


def run_notebook(folder: Path, cache: Path) -> tuple[str, str]:
    """Run the cells in a process of its own, since they load an artifact.

    Args:
        folder: Where it runs; what it writes lies there.
        cache: The cache folder.

    Returns:
        What the cells show, each with ``END`` behind it, and what they wrote to standard error.
    """
    (folder / "resources").symlink_to(NOTEBOOK.parents[1])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLLAGE_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", RUN, str(NOTEBOOK)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stdout, done.stderr
