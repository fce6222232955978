"""Gives runtime modules files of weights, which they read instead of holding weights.

A module of a large model names its files in its plan (``weight_files``), without folders. In the
process that compiles it they are in one folder, which ``COLLAGE_WEIGHTS_FOLDER`` names; in a
built module's folder and in an artifact they lie beside the runtime's library.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from collage_engine.support.files import link_file

VARIABLE = "COLLAGE_WEIGHTS_FOLDER"
"""Environment variable with the folder of the files of weights. The runtimes read it
(``WeightFiles`` in ``collage_module.h``), and so does the artifact's loader."""
PLAN_KEY = "weight_files"


@cache
def folder() -> Path:
    """Return this process's folder of weights, which its runtimes know from then on."""
    import atexit

    made = Path(tempfile.mkdtemp(prefix="collage-weights-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    os.environ[VARIABLE] = str(made)
    return made


def provide(files: Mapping[str, Path]) -> list[str]:
    """Make files known to this process's runtimes; returns their names.

    Args:
        files: The files by the names that a plan uses.
    """
    for name, file in files.items():
        link_file(file, folder() / name)
    return list(files)


def files_of(module: Any) -> list[Path]:
    """Return the files that a runtime module of this process reads; none of a module of others."""
    try:
        function = module.get_function("collage.plan")
    except AttributeError:
        return []
    names = json.loads(str(function())).get(PLAN_KEY, ())
    return [folder() / name for name in names]


def forget(module: Any) -> None:
    """Remove the files of a module that is not needed any more; what is mapped stays so."""
    for file in files_of(module):
        file.unlink(missing_ok=True)
