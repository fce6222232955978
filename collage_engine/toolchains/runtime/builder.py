"""Builds a toolchain's C++ runtime once per machine and loads it once per process.

A wheel may carry it compiled (``.ci/build``), for the versions of libraries that it was made with.

A runtime is one shared library. Its *kind* carries a hash of its sources and plan version, is the
module kind, the SONAME and the library's name; two runtimes of one kind in a process would
register the same functions twice and abort, so a library is opened by path only while its kind is
unknown to the process. The cache folder is chosen by the kind and by the versions and files of the
library and of tvm-ffi; which compiler made it is all the same. Where libraries are installed is no
part of it: a runtime names them by their SONAMEs only and finds them by links in its own folder,
which every environment points to its own. So it is compiled once for all environments of a machine.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import logging
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from collage_engine.machine.folders import cache_folder
from collage_engine.support.errors import ToolchainError, compiler_reason
from collage_engine.support.files import atomic_file, locked, write_atomically
from collage_engine.support.time_limits import WORK_S

_LOG = logging.getLogger(__name__)

HEADERS = Path(__file__).resolve().parent / "src"
HELD = HEADERS.with_name("held_src")
"""A header for runtimes that keep the bytes they were made of (``RuntimeSource.shared``)."""
KILLED = "signal terminated program"
"""The text by which GCC's driver reports a compiler that a signal ended."""
CARRIED = Path(__file__).resolve().parents[2] / "_carried"
"""The compiled runtimes that a wheel for one platform carries (``.ci/build``)."""


@dataclass(frozen=True)
class RuntimeSource:
    """The sources and libraries of which a runtime is made; paths are this machine's."""

    toolchain: str
    main: Path
    """The translation unit; every other file of its folder is a header of it."""
    plan_version: int = 1
    library_version: str = ""
    includes: tuple[Path, ...] = ()
    headers: tuple[Path, ...] = ()
    """Headers whose content tells the versions of all that is included, where other packages put
    theirs into the same folders; empty: what lies in the folders tells them."""
    links: tuple[Path, ...] = ()
    """Shared libraries that the runtime names as NEEDED."""
    shared: tuple[Path, ...] = ()
    """Folders of headers that it shares with other toolchains' runtimes, part of its sources."""
    beside: tuple[tuple[str, Path], ...] = ()
    """SONAME and file of each library that must lie in the runtime's folder, where ``$ORIGIN``
    finds it."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Return every source and header, in a fixed order."""
        own = [p for p in self.main.parent.iterdir() if p.suffix in {".cc", ".h"}]
        folders = (HEADERS, *self.shared)
        return tuple(sorted(own) + [p for folder in folders for p in sorted(folder.glob("*.h"))])

    @property
    def kind(self) -> str:
        """Returns ``collage_<toolchain>_<hash of the sources and the plan version>``."""
        digest = hashlib.sha256(f"plan {self.plan_version}\0".encode())
        for path in self.files:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return f"collage_{self.toolchain}_{digest.hexdigest()[:12]}"


class CannotBuild(ToolchainError):
    """A runtime cannot be compiled here, whatever is installed of its library.

    Attributes:
        advice: What to do about it.
    """

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.advice = advice


class CompilerKilled(ToolchainError):
    """A compiler was ended from outside: that says nothing of the runtime, so it is not kept."""


def build_folder() -> Path:
    """Return where compiled runtimes are kept: $COLLAGE_BUILD_DIR, else in the cache folder."""
    chosen = os.environ.get("COLLAGE_BUILD_DIR")
    return Path(chosen) if chosen else cache_folder() / "native"


def find_compiler() -> tuple[str, ...]:
    """Find the C++ compiler: $CXX, g++ or clang++, the first that answers.

    Returns:
        How it is called.

    Raises:
        CannotBuild: There is none.
    """
    return _find_compiler(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@cache
def _find_compiler(cxx: str, path: str) -> tuple[str, ...]:
    choices = [c for c in (shlex.split(cxx), ["g++"], ["clang++"]) if c]
    for command in choices:
        if shutil.which(command[0], path=path) is None:
            continue
        answer = subprocess.run(
            [*command, "--version"], capture_output=True, stdin=subprocess.DEVNULL
        )
        if answer.returncode == 0:
            return tuple(command)
    tried = ", ".join(shlex.join(c) for c in choices)
    raise CannotBuild(
        f"no C++ compiler found (tried {tried}); install g++ or set CXX to a C++17 compiler",
        "install g++, or set CXX to a C++17 compiler",
    )


def build(source: RuntimeSource) -> Path:
    """Return the file of the runtime library, compiled now or taken from the cache or the wheel.

    Several builders on the machine do not disturb each other: one compiles, the rest wait for it,
    and the file appears whole or not at all.

    Raises:
        ToolchainError: The runtime cannot be compiled; the text has the compiler's first error.
    """
    kind = source.kind
    digest = hashlib.sha256()
    for part in (
        kind,
        source.library_version,
        importlib.metadata.version("apache-tvm-ffi"),
        *(hashlib.sha256(header.read_bytes()).hexdigest() for header in source.headers),
        *map(_fingerprint, () if source.headers else source.includes),
        *map(_fingerprint, (*source.links, *(file for _, file in source.beside))),
    ):
        digest.update(part.encode() + b"\0")
    folder = build_folder() / f"{kind}-{digest.hexdigest()[:12]}"
    library = folder / f"lib{kind}.so"
    carried = CARRIED / folder.name / library.name
    try:
        if not library.exists():
            compiler = () if carried.exists() else find_compiler()
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / "lock"):
                if not library.exists():
                    if compiler:
                        _compile(compiler, source, kind, library)
                    else:
                        write_atomically(library, carried.read_bytes())
        _link_beside(folder, source)
    except OSError as error:
        raise CannotBuild(
            f"the compiled runtime of {source.toolchain} cannot be kept in {folder}: "
            f"{error.strerror or error}",
            "check the permissions of that folder, or choose another one with COLLAGE_CACHE_DIR",
        ) from error
    return library


@cache
def _fingerprint(path: Path) -> str:
    """Return what tells a library, or a folder of headers, from another one: names and sizes."""
    if not path.is_dir():
        return f"{path.name} {path.stat().st_size if path.exists() else 0}"
    files = (file for file in path.rglob("*") if file.is_file())
    sizes = sorted((file.relative_to(path).as_posix(), file.stat().st_size) for file in files)
    return hashlib.sha256(repr(sizes).encode()).hexdigest()


def _compile(compiler: tuple[str, ...], source: RuntimeSource, kind: str, library: Path) -> None:
    import tvm_ffi.libinfo

    _LOG.info("compiling %s", library)
    includes = [*tvm_ffi.libinfo.include_paths(), str(HEADERS)]
    includes += [str(p) for p in (*source.shared, *source.includes)]
    links = (Path(tvm_ffi.libinfo.find_libtvm_ffi()), *source.links)
    with atomic_file(library) as result:
        command = [
            *compiler,
            "-std=c++17",
            "-O2",
            "-DNDEBUG",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
            "-Wall",
            f'-DCOLLAGE_KIND="{kind}"',
            *(f"-I{p}" for p in includes),
            str(source.main),
            "-o",
            str(result),
            f"-Wl,-soname,{library.name}",
            "-Wl,-rpath,$ORIGIN",
            "-Wl,--no-undefined",
            "-Wl,--no-as-needed",
            *(str(p) for p in links),
            "-ldl",
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=WORK_S,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise ToolchainError(
                f"compiling the {source.toolchain} runtime took longer than {WORK_S:g} s"
            ) from None
        if done.returncode < 0 or KILLED in done.stderr:
            raise CompilerKilled(
                f"the compiler of the {source.toolchain} runtime was killed before it was done"
            )
        if done.returncode != 0:
            reason = compiler_reason(done.stderr, f"exit status {done.returncode}")
            raise ToolchainError(f"the {source.toolchain} runtime does not compile: {reason}")


def _link_beside(folder: Path, source: RuntimeSource) -> None:
    """Put symbolic links to this environment's libraries where ``$ORIGIN`` finds them.

    Those of another environment may be gone. Where they cannot be replaced they are left.
    """
    for name, file in source.beside:
        link = folder / name
        if link.is_symlink() and link.readlink() == file:
            continue
        new = folder / f".{name}.{os.getpid()}"
        try:
            new.unlink(missing_ok=True)
            new.symlink_to(file)
            new.replace(link)
        except OSError:
            if not link.exists():
                raise


def is_registered(kind: str) -> bool:
    """Tell whether this process already knows the module kind, however it was loaded."""
    import tvm_ffi

    name = f"ffi.Module.load_from_bytes.{kind}"
    return tvm_ffi.get_global_func(name, allow_missing=True) is not None


def load(source: RuntimeSource) -> str:
    """Make the runtime's module kind known to this process; returns the kind.

    An artifact opened before may have brought the same kind; then nothing is opened.
    """
    kind = source.kind
    if not is_registered(kind):
        library = build(source)
        try:
            ctypes.CDLL(str(library), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise ToolchainError(f"cannot load the {source.toolchain} runtime: {error}") from error
        if not is_registered(kind):
            raise ToolchainError(f"the {source.toolchain} runtime registered no {kind}")
    return kind


def wheel_version(package: str) -> str:
    """Return the version of an installed distribution.

    Raises:
        ToolchainError: It is not installed.
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainError(f"the package {package} is not installed") from None


def header_version(header: Path, prefix: str, last: str = "PATCH") -> str:
    """Return the version that a library's header defines by three macros.

    Args:
        header: The header.
        prefix: The beginning of the macros' names, which go on with ``MAJOR`` and ``MINOR``.
        last: What the third one's name goes on with.

    Raises:
        ToolchainError: The header tells no version.
    """
    text = header.read_text()
    matches = [
        re.search(rf"^\s*#define\s+{prefix}{part}\s+(\w+)", text, re.MULTILINE)
        for part in ("MAJOR", "MINOR", last)
    ]
    if not all(matches):
        raise ToolchainError(f"{header} states no version")
    return ".".join(match[1] for match in matches if match)


@cache
def find_in_wheel(package: str, name: str, folder: str = "") -> Path:
    """Return a file that an installed distribution carries.

    Args:
        package: The distribution.
        name: The file's name.
        folder: The end of its folder.

    Raises:
        ToolchainError: The distribution is not installed, or lacks the file.
    """
    wheel_version(package)
    for file in _files(package):
        if file.name == name and file.parent.as_posix().endswith(folder):
            path = Path(str(file.locate())).resolve()
            if path.exists():
                return path
    raise ToolchainError(f"the package {package} carries no {name}")


@cache
def _files(package: str) -> tuple[importlib.metadata.PackagePath, ...]:
    """Return the files of an installed distribution, thousands of some, whose list takes 50 ms."""
    return tuple(importlib.metadata.files(package) or ())
