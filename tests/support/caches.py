"""Cache folders of tests: measurements of their own, and what is the same for all of them."""

from __future__ import annotations

import os
from pathlib import Path

SHARED = "COLLAGE_TESTS_CACHE"
"""Environment variable with the cache folder of all tests of a process; ``conftest.py`` sets it."""
ONCE_PER_MACHINE = ("probes", "peaks")
"""What does not depend on measurements: which toolchains there are, and the compiled loops."""


def fresh_cache(folder: Path) -> Path:
    """Make a cache folder without measurements; what is found out once per machine is there.

    Args:
        folder: Where it is to be.

    Returns:
        The same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shared = os.environ.get(SHARED)
    for part in ONCE_PER_MACHINE if shared is not None else ():
        assert shared is not None
        (Path(shared) / part).mkdir(parents=True, exist_ok=True)
        (folder / part).symlink_to(Path(shared) / part)
    return folder
