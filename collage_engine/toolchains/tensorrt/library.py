"""Finds the TensorRT that is installed: TensorRT 8.5 to 11 or TensorRT-RTX.

One interface serves all of them; what a release lacks is looked up on the module when it is needed.
No wheel contains the C++ headers: they come from ``$TENSORRT_INCLUDE`` or are missing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from collage_engine.machine.cuda import cuda_probe
from collage_engine.records.errors import ToolchainError
from collage_engine.records.reasons import short_reason

INCLUDE = "TENSORRT_INCLUDE"
"""Environment variable with the folder of NvInferRuntime.h."""
LIBRARY = "TENSORRT_LIB"
"""Environment variable with the path of libnvinfer or libtensorrt_rtx, or of its folder."""
INSTALL = "pip install tensorrt"
"""Command that installs TensorRT, as messages name it."""
LEAST = (8, 5)
"""The first release with ``enqueueV3`` (TensorRT's release notes)."""

_MODULES = (
    ("tensorrt", False),
    ("tensorrt_bindings", False),
    ("tensorrt_rtx", True),
    ("tensorrt_rtx_bindings", True),
)
"""Python modules in the order in which they are tried, and whether they are TensorRT-RTX."""
_PACKAGES = ("tensorrt_libs", "tensorrt", "tensorrt_bindings")
_RTX_PACKAGES = ("tensorrt_rtx_libs", "tensorrt_rtx", "tensorrt_rtx_bindings")
"""Python packages that may contain the library."""
_SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/tensorrt/lib")
"""Folders in which distributions and NVIDIA's archives install libraries."""


@dataclass(frozen=True)
class Flavour:
    """An installed Python interface that is not imported yet."""

    module: str
    rtx: bool

    @property
    def title(self) -> str:
        """Return the name of the product for messages."""
        return "TensorRT-RTX" if self.rtx else "TensorRT"


@dataclass(frozen=True)
class Api:
    """The imported interface, and what its release has."""

    trt: Any
    flavour: Flavour
    version: str

    @property
    def release(self) -> tuple[int, int]:
        """Return the major and minor number of the release."""
        major, minor = [*re.findall(r"\d+", self.version), "0", "0"][:2]
        return int(major), int(minor)

    @property
    def strongly_typed(self) -> bool:
        """Tell whether models state all types themselves (TensorRT 11, and RTX).

        Older releases may be told to compute float32 in half precision.
        """
        return not hasattr(self.trt.BuilderFlag, "FP16")

    def architectures(self) -> tuple[str, ...]:
        """Returns the devices for which TensorRT-RTX builds engines, for example sm_86.

        The result is empty where engines are built for the device of this machine only.
        """
        found = getattr(self.trt, "ComputeCapability", None)
        if not self.flavour.rtx or found is None:
            return ()
        names = [name for name in dir(found) if re.fullmatch(r"SM\d+", name)]
        return tuple(f"sm_{n}" for n in sorted(int(name[2:]) for name in names))


def flavour() -> Flavour:
    """Returns TensorRT if it is installed, else TensorRT-RTX.

    Raises:
        ToolchainError: None is installed; the message names the package.
    """
    for module, rtx in _MODULES:
        if importlib.util.find_spec(module) is not None:
            return Flavour(module, rtx)
    raise ToolchainError(
        "the package tensorrt is not installed (nor tensorrt-rtx, for GeForce and RTX devices)"
    )


@cache
def api() -> Api:
    """Returns the imported Python interface.

    Raises:
        ToolchainError: It cannot be imported, for the reason in the message.
    """
    found = flavour()
    try:
        trt = importlib.import_module(found.module)
    except Exception as error:  # a binding without its library raises what the loader does
        raise ToolchainError(f"{found.title} cannot be loaded: {short_reason(error)}") from error
    result = Api(trt, found, str(getattr(trt, "__version__", "0")))
    if not found.rtx and result.release < LEAST:
        raise ToolchainError(f"TensorRT {result.version} is older than {LEAST[0]}.{LEAST[1]}")
    return result


def bare(architecture: str) -> str:
    """Returns an architecture without its suffix, sm_90 for sm_90a; it is the same device."""
    return architecture.rstrip("af")


def reason_against_architecture(architecture: str) -> str | None:
    """Returns why engines cannot be built for an architecture; None where they can."""
    found = api()
    known = found.architectures()
    if not found.flavour.rtx:
        here = cuda_probe().devices
        if here and bare(here[0].architecture) == bare(architecture):
            return None
        return "TensorRT builds an engine only on the device that runs it: " + (
            f"here that is {bare(here[0].architecture)}" if here else "there is none here"
        )
    if known and bare(architecture) not in known:
        return (
            f"TensorRT-RTX {found.version} runs on {', '.join(known)}, not on "
            f"{bare(architecture)}: data-centre devices need TensorRT itself"
        )
    return None


def library_file() -> Path:
    """Returns the path of libnvinfer.so.N or libtensorrt_rtx.so.N.

    It is that of $TENSORRT_LIB, beside the package, or installed in the system.
    """
    rtx = flavour().rtx
    stem = "libtensorrt_rtx.so" if rtx else "libnvinfer.so"
    chosen = os.environ.get(LIBRARY)
    if chosen:
        places = [Path(chosen)]
    else:
        places = [
            Path(place)
            for package in (_RTX_PACKAGES if rtx else _PACKAGES)
            if (spec := importlib.util.find_spec(package)) is not None
            for place in spec.submodule_search_locations or ()
        ]
        places += [Path(place) for place in _SYSTEM]
    for place in places:
        if place.is_file():
            return place.resolve()
        versioned = re.compile(re.escape(stem) + r"[\d.]+")
        found = sorted(p for p in place.glob(f"{stem}.*") if versioned.fullmatch(p.name))
        if found:
            return found[0].resolve()
    raise ToolchainError(f"no {stem} was found: set {LIBRARY} to it")


def soname(library: Path) -> str:
    """Returns the name by which programs open a library: its file name with the major number."""
    stem, _, version = library.name.partition(".so.")
    return f"{stem}.so.{version.split('.')[0]}" if version else library.name


def headers() -> Path | None:
    """Returns the folder $TENSORRT_INCLUDE, checked against the library; None when it is not set.

    Raises:
        ToolchainError: It holds no headers, or those of another major release, with which the
            library's classes would lie differently in memory.
    """
    chosen = os.environ.get(INCLUDE)
    if not chosen:
        return None
    folder = Path(chosen).resolve()
    if not (folder / "NvInferRuntime.h").is_file():
        raise ToolchainError(f"{INCLUDE}={chosen} holds no NvInferRuntime.h")
    major = _header_major(folder)
    ours = api().release[0]
    if major is not None and major != ours:
        raise ToolchainError(
            f"{INCLUDE}={chosen} holds the headers of release {major}, the library is {ours}"
        )
    return folder


def _header_major(folder: Path) -> int | None:
    """Returns the major release that NvInferVersion.h states, directly or by one further name."""
    version = folder / "NvInferVersion.h"
    if not version.is_file():
        return None
    text = version.read_text(errors="replace")
    defined: dict[str, str] = dict(re.findall(r"#define\s+(\w+)\s+(\w+)", text))
    value = defined.get("NV_TENSORRT_MAJOR", "")
    value = defined.get(value, value)
    return int(value) if value.isdigit() else None
