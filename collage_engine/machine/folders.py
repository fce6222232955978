"""Says where things are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

from collage_engine.records.errors import CollageError


def cache_folder() -> Path:
    """Return the cache folder of this project: $COLLAGE_CACHE_DIR, else the system's choice.

    Raises CollageError where neither says anything (no home).
    """
    chosen = os.environ.get("COLLAGE_CACHE_DIR")
    import platformdirs

    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        return Path(platformdirs.user_cache_dir("collage"))
    except RuntimeError as error:  # no HOME, and no such user
        raise CollageError(
            f"there is no folder to keep measurements in ({error}): set COLLAGE_CACHE_DIR to one"
        ) from error
