"""Finds the TensorRT that is installed: TensorRT 10 or 11 or TensorRT-RTX.

One interface serves all of them; what a release lacks is looked up on the module when it is needed.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from collage_engine.machine.cuda import cuda_probe
from collage_engine.support.errors import ToolchainError, short_reason

INSTALL = "pip install tensorrt"
"""Command that installs TensorRT, as messages name it."""
LEAST = (10, 0)
"""The first release whose networks may be strongly typed and whose batch is always explicit
(TensorRT's release notes)."""

_MODULES = (
    ("tensorrt", False),
    ("tensorrt_bindings", False),
    ("tensorrt_rtx", True),
    ("tensorrt_rtx_bindings", True),
)
"""Python modules in the order in which they are tried, and whether they are TensorRT-RTX."""


@dataclass(frozen=True)
class Api:
    """The imported interface, and what its release has."""

    trt: Any
    module: str
    rtx: bool
    """Whether it is TensorRT-RTX."""
    version: str

    @property
    def title(self) -> str:
        """Return the name of the product for messages."""
        return "TensorRT-RTX" if self.rtx else "TensorRT"

    @property
    def release(self) -> tuple[int, int]:
        """Return the major and minor number of the release."""
        major, minor = [*re.findall(r"\d+", self.version), "0", "0"][:2]
        return int(major), int(minor)

    def architectures(self) -> tuple[str, ...]:
        """Return the devices for which TensorRT-RTX builds engines, for example sm_86.

        The result is empty where engines are built for the device of this machine only.
        """
        capability = getattr(self.trt, "ComputeCapability", None)
        if not self.rtx or capability is None:
            return ()
        names = [name for name in dir(capability) if re.fullmatch(r"SM\d+", name)]
        return tuple(f"sm_{n}" for n in sorted(int(name[2:]) for name in names))


@cache
def api() -> Api:
    """Return the imported Python interface: TensorRT's if it is installed, else TensorRT-RTX's.

    Raises:
        ToolchainError: None is installed, or it cannot be imported, for the reason in the message.
    """
    installed = [each for each in _MODULES if importlib.util.find_spec(each[0]) is not None]
    if not installed:
        raise ToolchainError(
            "the package tensorrt is not installed (nor tensorrt-rtx, for GeForce and RTX devices)"
        )
    module, rtx = installed[0]
    try:
        trt = importlib.import_module(module)
    except Exception as error:  # a binding without its library raises what the loader does
        raise ToolchainError(f"{module} cannot be loaded: {short_reason(error)}") from error
    trt_api = Api(trt, module, rtx, str(getattr(trt, "__version__", "0")))
    if not rtx and trt_api.release < LEAST:
        raise ToolchainError(f"TensorRT {trt_api.version} is older than {LEAST[0]}.{LEAST[1]}")
    return trt_api


def bare(architecture: str) -> str:
    """Return an architecture without its suffix, sm_90 for sm_90a; it is the same device."""
    return architecture.rstrip("af")


def reason_against_architecture(architecture: str) -> str | None:
    """Return why engines cannot be built for an architecture; None where they can."""
    trt_api = api()
    supported = trt_api.architectures()
    if not trt_api.rtx:
        here = cuda_probe().devices
        if here and bare(here[0].architecture) == bare(architecture):
            return None
        return "TensorRT builds an engine only on the device that runs it: " + (
            f"here that is {bare(here[0].architecture)}" if here else "there is none here"
        )
    if supported and bare(architecture) not in supported:
        return (
            f"TensorRT-RTX {trt_api.version} runs on {', '.join(supported)}, not on "
            f"{bare(architecture)}: data-centre devices need TensorRT itself"
        )
    return None
