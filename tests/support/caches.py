"""Makes cache folders of tests: measurements of their own, and what is the same for all.

Which toolchains there are and what transitions cost is found out once per machine and kept in the
cache folder. A test that is not about that takes it from the tests that ran before it, also from
those of other worker processes: looking again would take most of its time.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from pathlib import Path

from collage_engine.store.store import FILE_NAME, Store

SHARED = "COLLAGE_TESTS_CACHE"
"""Environment variable with the folder of what all tests of a command share; ``conftest.py`` sets
it."""
ONCE_PER_MACHINE = ("probes",)
"""What does not depend on measurements: which toolchains there are, and the compiled loops."""
CONSTANTS = ("transitions:", "conversions:")
"""How the names of those constants in a store begin that are measured once per machine: launches
and transitions, and conversions between formats. A store's drift is not among them: it is learned
from the measurements beside it."""
STORES = "stores"
"""File, in the shared folder, that lists the stores of all caches made so far."""


def fresh_cache(folder: Path, *, constants: bool = True) -> Path:
    """Make a cache folder without measurements; what is found out once per machine is there.

    Args:
        folder: Where it is to be.
        constants: Whether that holds for transitions and conversions too, and whether other tests
            may have those that are measured with this cache.

    Returns:
        The same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shared = os.environ.get(SHARED)
    if shared is None:
        return folder
    for part in ONCE_PER_MACHINE:
        (Path(shared) / part).mkdir(parents=True, exist_ok=True)
        (folder / part).symlink_to(Path(shared) / part)
    if not constants:
        return folder
    found: dict[str, str] = {}
    listed = Path(shared) / STORES
    for path in listed.read_text().splitlines() if listed.exists() else ():
        found |= _constants(Path(path))
    if found:
        with Store(folder / FILE_NAME) as store:
            for name, value in found.items():
                store.put_constant(name, json.loads(value))
    with listed.open("a") as file:
        file.write(f"{folder / FILE_NAME}\n")
    return folder


def _constants(store: Path) -> dict[str, str]:
    """Returns what a test found out about the machine, as JSON by name; {} without its store."""
    if not store.exists():
        return {}
    with contextlib.suppress(sqlite3.Error), sqlite3.connect(store) as database:
        rows = database.execute("select key, value from constants").fetchall()
        return {name: value for name, value in rows if name.startswith(CONSTANTS)}
    return {}
