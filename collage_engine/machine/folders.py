"""Where things are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder for this project: $COLLAGE_CACHE_DIR, else the system's choice."""
    chosen = os.environ.get("COLLAGE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("collage"))
