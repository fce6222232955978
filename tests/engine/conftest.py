"""What several files of these tests need, made once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.artifact_cases import compile_loader
from tests.support.bare_python import bare_site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages of a Python that has nothing of this project."""
    return bare_site(tmp_path_factory.mktemp("bare") / "site")


@pytest.fixture(scope="session")
def cpp_loader() -> Path:
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no C++ compiler")
    return compile_loader()
