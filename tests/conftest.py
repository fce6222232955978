"""What all tests share: worker processes, compiled runtimes, and never the user's own measurements.

Compiled runtimes are shared so that tests with a store of their own need not compile them again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest

from tests.support.caches import SHARED, fresh_cache
from tests.support.distribution import WholeFiles, count_of_workers

# Set here and not in a fixture: test modules and child processes read it when they load.
os.environ.setdefault(
    "COLLAGE_BUILD_DIR", str(Path(platformdirs.user_cache_dir("collage")) / "native")
)

# Images of containers often set it: each of hundreds of child processes would then compile the
# engine's sources anew, a third of a second of processor time, and each worker rewrite all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# TVM's pool would bind the test process to one processor, and what is tested after it with it.
os.environ.setdefault("TVM_BIND_THREADS", "0")
# Without it the pool has half of the processors, and with one thread it runs nothing in parallel.
os.environ.setdefault("TVM_NUM_THREADS", "2")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return count_of_workers(config)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> WholeFiles:
    return WholeFiles(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder that all tests share; worker processes inherit its name."""
    if SHARED not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="collage-tests-")
        os.environ[SHARED] = folder.name

        def remove() -> None:
            del os.environ[SHARED]
            folder.cleanup()

        config.add_cleanup(remove)


@pytest.fixture(scope="session", autouse=True)
def _own_measurements() -> Iterator[None]:
    """Measurements of tests go to a folder that is removed, unless a test names its own."""
    with tempfile.TemporaryDirectory(prefix="collage-tests-") as folder:
        own = os.environ.setdefault("COLLAGE_CACHE_DIR", folder) == folder
        if own:
            fresh_cache(Path(folder))
        yield
        if own:
            del os.environ["COLLAGE_CACHE_DIR"]
