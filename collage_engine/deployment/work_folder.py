"""Where the artifacts of single runs lie until they become one."""

from __future__ import annotations

import os
from pathlib import Path

from collage_engine.machine.folders import Scratch
from collage_engine.records.errors import ArtifactError


def work_folder(out: str | Path | None) -> Scratch:
    """Make a folder for artifacts that are to become the one at ``out``.

    It lies beside that, where there is most likely room for them; where nobody may write there, it
    is one of the system's temporary folders.

    Args:
        out: The artifact to be; None: nothing is exported.

    Raises:
        ArtifactError: It cannot be made.
    """
    if out is None:
        return Scratch()
    parent = Path(out).absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Scratch(parent if os.access(parent, os.W_OK | os.X_OK) else None)
    except OSError as error:
        raise ArtifactError(
            f"the artifact cannot be written to {out}: {error.strerror or error}"
        ) from error
