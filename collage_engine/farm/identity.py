"""Identifies a machine and its software, by which pools are formed and strangers refused."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from collage_engine.farm.messages import Hello
from collage_engine.machine.device import device, fingerprint
from collage_engine.machine.worker import Worker
from collage_engine.toolchains.sources import hash_files, source_files

LIBRARIES = ("distributed", "msgspec", "numpy")
"""Libraries whose versions must be equal on all machines: the first carries the messages, the
second writes them, and the third is the speed probe's."""


@cache
def engine_hash() -> str:
    """Hash the engine's sources, without toolchains: machines with another hash are refused."""
    package = Path(__file__).resolve().parents[1]
    adapters = package / "toolchains"
    files = {p for p in source_files([package]) if adapters not in p.parents}
    return hash_files(files)[:16]


@cache
def library_versions() -> dict[str, str]:
    """Return the versions of Python and of ``LIBRARIES``."""
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"python": ".".join(platform.python_version_tuple()[:2]), **versions}


HELLO_S = 600.0
"""Seconds for probing the toolchains, whose runtimes may have to be compiled first; chosen."""


def this_machine(environment: Mapping[str, str], name: str = "") -> Hello:
    """Return what this machine says of itself; its toolchains are probed in a child.

    Args:
        environment: Variables for the child.
        name: What the farm calls this machine; empty: its host's name.
    """
    with Worker(
        "collage_engine.farm.identity:key_context", env=environment, name="collage-farm-hello"
    ) as child:
        facts = child.call(None, timeout_s=HELLO_S)
    return Hello(
        name=name or platform.node(),
        host=platform.node(),
        engine=engine_hash(),
        libraries=library_versions(),
        processor=device().description,
        cores=device().threads,
        fingerprint=fingerprint(),
        toolchains=facts["versions"],
        adapters=facts["sources"],
        compiler=facts["compiler"],
    )


def key_context(_: object) -> dict[str, Any]:
    """Return what measurement keys hold of this machine beside its fingerprint; imports TVM."""
    import tvm

    from collage_engine.lowering.target import build_target
    from collage_engine.toolchains.registry import get, probe_all
    from collage_engine.toolchains.sources import source_hash

    present = [state for state in probe_all() if state.available]
    return {
        "versions": {state.name: state.version or "" for state in present},
        "sources": {state.name: source_hash(type(get(state.name))) for state in present},
        "compiler": f"{tvm.__version__} {build_target('')}",
    }
