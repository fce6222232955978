"""Writes the package of a new toolchain, from the files in ``resources/toolchain``."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from collage_engine.machine.folders import write_whole
from collage_engine.records.versions import __version__
from collage_engine.support.errors import CollageError, UsageError
from collage_engine.support.files import resource
from collage_engine.toolchains.registry import all_names

PACKAGE = "package"
"""Folder of the template that becomes the Python package."""


def write_package(name: str, into: Path) -> Path:
    """Write a package with a toolchain in Python alone, which keeps what the engine expects of it.

    Args:
        name: What users will call the toolchain.
        into: The folder in which the package's own folder is made.

    Returns:
        The package's folder.

    Raises:
        UsageError: It can be no toolchain's name, or is one's already; or the folder is there.
        CollageError: The folder cannot be written.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UsageError(f"{name!r} can be no toolchain's name: take small letters and digits")
    if name in all_names():
        raise UsageError(f"there is a toolchain {name!r} already")
    folder = into / f"collage-{name}"
    if folder.exists():
        raise UsageError(f"{folder} is there already")
    template = resource("toolchain")
    values = {"name": name, "title": name.capitalize(), "version": __version__}

    def fill(new: Path) -> None:
        (new / f"collage_{name}").mkdir()
        for file in template.rglob("*.*"):
            if file.suffix == ".pyc":  # pip compiles what it installs
                continue
            place = file.relative_to(template).as_posix().replace(PACKAGE, f"collage_{name}")
            (new / place).write_text(Template(file.read_text()).substitute(values))

    try:
        write_whole(folder, fill)
    except OSError as error:
        raise CollageError(f"{folder} cannot be written: {error.strerror or error}") from error
    return folder
