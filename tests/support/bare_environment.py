"""Installs Collage Explorer from its wheel into a virtual environment, as a user has it.

It has nothing else of this checkout. The libraries that the wheel requires are links to those of
the environment of the tests, so nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]

_WATCH = """\
import os, sys

def _watch(event, arguments, log={log!r}, root={root!r}):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(root):
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a") as file:
            file.write(arguments[0] + "\\n")

sys.addaudithook(_watch)
"""


class BareEnvironment:
    """A folder with a virtual environment that has the product with the extra `cpu`, and no more.

    Attributes:
        folder: Where commands run; it also holds the cache.
    """

    def __init__(self, folder: Path, *packages: Path, product: Path = ROOT) -> None:
        """Build wheels of the product and of `packages`, and install them without an index.

        `product` may be a wheel of it that was made before.
        """
        self.folder = folder
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        (self._site,) = (folder / "venv").glob("lib/python3*/site-packages")
        self.install(product, *packages)
        (product,) = metadata.distributions(name="collage-explorer", path=[str(self._site)])
        for distribution in required(product, frozenset({"cpu"})):
            self._link(distribution)
        watch = _WATCH.format(log=str(self._log), root=str(ROOT) + os.sep)
        (self._site / "sitecustomize.py").write_text(watch)

    def install(self, *packages: Path) -> None:
        """Build wheels of packages, and install them without an index."""
        wheels = [self._wheel(source) for source in packages]
        python = self.folder / "venv" / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
        options = ["install", "-q", "--no-index", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*pip, *options, *map(str, wheels)], check=True, timeout=120)

    @property
    def _log(self) -> Path:
        return self.folder / "opened.txt"

    def _wheel(self, source: Path) -> Path:
        folder = self.folder / "wheels" / source.name
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-deps"]
        options = ["--no-build-isolation", "--disable-pip-version-check", "-w", str(folder)]
        subprocess.run([*pip, *options, str(source)], check=True, timeout=120)
        (wheel,) = folder.glob("*.whl")
        return wheel

    def _link(self, distribution: metadata.Distribution) -> None:
        """Link a library's folders, and one by one the files it puts outside of site-packages."""
        files = distribution.files or ()
        entries = {f.parts[0] if f.parts[0] != ".." else str(f) for f in files}
        for name in sorted(entries):
            source = Path(str(distribution.locate_file(name)))
            place = Path(os.path.normpath(self._site / name))
            commands = place.parent.name in ("bin", "Scripts")
            if source.exists() and not place.exists() and not commands and name != "__pycache__":
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(source)

    def collage(self, *arguments: object, **environment: str) -> str:
        """Return what the installed `collage` prints; it must end with 0."""
        done = self.run(*arguments, **environment)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def run(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the installed `collage` with a clean environment."""
        kept = {name: os.environ[name] for name in ("PATH", "COLLAGE_BUILD_DIR")}
        return subprocess.run(
            [str(self.folder / "venv" / "bin" / "collage"), *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=280,
            check=False,
            env=kept
            | {"HOME": str(self.folder), "COLLAGE_CACHE_DIR": str(self.folder / "cache")}
            | environment,
        )

    def opened_in_checkout(self) -> set[str]:
        """Returns the checkout's files that its Python processes opened, but for libraries' own."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return {line for line in lines if not line.startswith(sys.prefix + os.sep)}


def required(
    distribution: metadata.Distribution, extras: frozenset[str]
) -> list[metadata.Distribution]:
    """Returns what a distribution with these extras requires, and what that requires.

    Requirements that are not installed are left out.
    """
    found: dict[str, metadata.Distribution] = {}
    wanted = [(distribution, extras)]
    while wanted:
        distribution, extras = wanted.pop()
        for requirement in map(Requirement, distribution.requires or ()):
            marker, name = requirement.marker, canonicalize_name(requirement.name)
            asked = [{"extra": extra} for extra in extras or {""}]
            if name in found or (marker and not any(map(marker.evaluate, asked))):
                continue
            with contextlib.suppress(metadata.PackageNotFoundError):  # not for this platform
                found[name] = metadata.distribution(name)
                wanted.append((found[name], frozenset(requirement.extras)))
    return list(found.values())
