"""Toolchains and their instances, as data."""

from __future__ import annotations

import msgspec


class ToolchainInstance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One toolchain with one configuration; two instances never share a measurement.

    ``config`` holds what differs between instances offered side by side, e.g.
    ``(("level", "basic"),)``. Threads are the run's, the same for all. ``precision`` is the
    lowest that it rounds float32 values to inside (see ``records.precision``).
    """

    toolchain: str
    config: tuple[tuple[str, str], ...] = ()
    threads: int = 1
    precision: str = "float32"
    device: str = "cpu"
    """Device its partitions run on: cpu, cuda:0."""
    architecture: str = ""
    """Of a cuda device: what is compiled for, e.g. sm_90a."""
    tuning: str = ""
    """Which table of tuned kernels it is lowered with (``tvm.choices``); no part of the id. A
    candidate's measurement key holds what of the table it uses."""

    @property
    def id(self) -> str:
        """``onnxruntime`` or ``onnxruntime[level=basic]``: unique within a run."""
        if not self.config:
            return self.toolchain
        return self.toolchain + "[" + ",".join(f"{k}={v}" for k, v in self.config) + "]"

    @property
    def library(self) -> str:
        """The toolchain whose library its kernels call; empty: none."""
        return self.option("library")

    @property
    def runtimes(self) -> tuple[str, ...]:
        """Toolchains whose runtime libraries its partitions need."""
        return (self.toolchain, self.library) if self.library else (self.toolchain,)

    def option(self, name: str, default: str = "") -> str:
        """The value of one key of the configuration."""
        return dict(self.config).get(name, default)


class ToolchainState(msgspec.Struct, frozen=True, kw_only=True):
    """What probing a toolchain found on this machine (a line of ``collage toolchains``)."""

    name: str
    available: bool
    version: str | None = None
    reason: str | None = None
    """Why it is not available; None when it is."""
    install: str | None = None
    """The command that installs it; None when available."""
    devices: tuple[str, ...] = ()
    """e.g. ("cpu",)"""
    licence: str | None = None
    builds: bool = False
    """Not available, for want of a device; but what it compiles for one can be exported here."""
    targets: tuple[str, ...] = ()
    """Kinds of devices that it compiles for, cpu and cuda; empty: an older engine did not say."""

    def serves(self, kind: str) -> bool:
        """Whether it may have something for a kind of device, cpu or cuda."""
        return not self.targets or kind in self.targets


class RuntimeLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A shared library an exported artifact must carry to run a toolchain's partitions."""

    file: str
    """Path of the library on this machine."""
    name: str
    """File name inside the artifact (its SONAME)."""
    toolchain: str
    version: str
    licence: str
    """SPDX identifier."""
    linked: bool = False
    """True for our own runtime, which model.so names as NEEDED; False for what it loads."""
    python: str = ""
    """Not empty: no library but a Python file, to be run before model.so is loaded, that needs
    this Python module. The artifact then needs Python."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device of this machine. ``name`` is what pins and candidates call it: cpu, cuda:0."""

    name: str
    description: str
    threads: int = 1
    fingerprint: str = ""
    """Hash of processor, caches, instruction sets and kernel: part of a measurement's key."""
