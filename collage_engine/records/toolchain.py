"""Defines toolchains and their instances as data, and what can be tuned of them."""

from __future__ import annotations

from typing import Any

import msgspec

from collage_engine.support.typed import Count, Figure


class ToolchainInstance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A toolchain with one configuration; two instances never share a measurement.

    ``config`` holds what differs between instances used side by side, e.g.
    ``(("precision", "bf16"),)``. Threads are the run's, the same for all. ``precision`` is the
    lowest that it rounds float32 values to inside (see ``records.precision``).
    """

    toolchain: str
    config: tuple[tuple[str, str], ...] = ()
    threads: Count = 1
    precision: str = "float32"
    device: str = "cpu"
    """The device on which its partitions run: ``cpu`` or ``cuda:0``."""
    architecture: str = ""
    """The architecture that a cuda device's instance compiles for, e.g. ``sm_90a``; empty for the
    processor."""
    tuning: str = ""
    """The hash of the table of tuned kernels with which it is lowered (``kernels.choices``); no
    part of the id. A candidate's measurement key holds what it uses of the table."""

    @property
    def id(self) -> str:
        """Return a name that is unique within a run, such as ``tvm[precision=bf16]``."""
        if not self.config:
            return self.toolchain
        return self.toolchain + "[" + ",".join(f"{k}={v}" for k, v in self.config) + "]"

    def option(self, name: str, default: str = "") -> str:
        """Return the value of one key of the configuration."""
        return dict(self.config).get(name, default)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The device that a run compiles for: the processor with some threads, or a CUDA device."""

    kind: str = "cpu"
    """The kind of device: ``cpu`` or ``cuda``."""
    threads: int = 1
    """Threads that a partition on the processor may use."""
    architecture: str = ""
    """The architecture that is compiled for on a CUDA device, e.g. ``sm_90a``."""

    @classmethod
    def cuda(cls, architecture: str) -> Target:
        """Return the device ``cuda:0``, of this architecture."""
        return cls(kind="cuda", architecture=architecture)


SHORT_SPIN_TURNS = "500"
"""Turns for which idle threads of TVM's pool and of OpenMP spin where runtimes with threads of
their own are mixed: some 0.2 ms and 10 µs, after which they sleep and leave the processors to the
others. Without any, every kernel wakes the other threads anew ("idle threads that spin" in
``tests/benchmarks/RESULTS.md``)."""


class ToolchainAbout(msgspec.Struct, frozen=True, kw_only=True):
    """The description that a toolchain gives of itself, on every machine, loading nothing.

    ``name`` is what users type and what documents hold; ``title`` is how its makers write it.
    ``colour``, ``letters`` and ``pattern`` are how it is recognised in pictures; where they are
    empty, they follow from its name.
    """

    name: str
    """The name that users type: lower-case letters, digits and underscores, beginning with a
    letter."""
    title: str
    licence: str
    """SPDX expression of the licence of what an artifact carries of the toolchain."""
    targets: tuple[str, ...] = ("cpu",)
    """Kinds of devices that the toolchain compiles for: ``cpu``, ``cuda``."""
    install: str = ""
    """The command that installs the toolchain, as messages show it."""
    colour: str = ""
    """The colour of its boxes and bars as ``#rrggbb``."""
    letters: str = ""
    """Two capital letters that stand for it in pictures."""
    pattern: str = ""
    """The pattern of its boxes and bars, one of ``wording.titles``."""
    environment: dict[str, str] = {}
    """Environment variables that its libraries read when they load; ``{threads}`` in a value
    stands for the number of threads."""
    passive_environment: dict[str, str] = {}
    """Further variables for a process in which other runtimes have threads of their own, too: idle
    threads may spin for ``SHORT_SPIN_TURNS`` at most."""
    own_threads: bool = True
    """Whether its library has threads of its own; else whatever it shares out is done by those of
    the virtual machine, as TVM's kernels are."""
    whole_model: bool = True
    """Whether a user could run a whole model with it; then it is a baseline."""
    mixes_precision: bool = False
    """Whether its reduced instances can leave some products of a partition in float32
    (``records.precision.keep_float32``)."""

    def variables(self, threads: int, spin: bool) -> dict[str, str]:
        """Return the environment variables for a process with so many threads.

        Args:
            threads: How many threads its partitions may use.
            spin: Whether its idle threads may spin as long as they do by themselves.
        """
        chosen = dict(self.environment) if spin else self.environment | self.passive_environment
        return {name: value.replace("{threads}", str(threads)) for name, value in chosen.items()}


class ToolchainState(msgspec.Struct, frozen=True, kw_only=True):
    """The result of probing a toolchain on this machine (a line of ``collage toolchains``).

    The registry adds what the toolchain says of itself (``ToolchainAbout``), so that the desktop,
    the report and the command line can name and draw it without importing it.
    """

    name: str
    available: bool
    version: str | None = None
    reason: str | None = None
    """A sentence on why it is not available, or not for one of its targets; None when it is."""
    late: bool = False
    """Whether it is not available for now only, since its probe was not waited for."""
    fault: bool = False
    """Whether it is not available since probing it crashed, hung or took too much memory."""
    install: str | None = None
    """The command that installs the toolchain; None when it is available."""
    devices: tuple[str, ...] = ()
    """Names of the devices on which it runs, for example ``("cpu",)``."""
    licence: str | None = None
    builds: bool = False
    """Whether the toolchain is unavailable only for want of a device: what it compiles for one can
    be exported here."""
    targets: tuple[str, ...] = ()
    """Kinds of devices that the toolchain compiles for, ``cpu`` and ``cuda``."""
    bfloat16: bool | None = None
    """Whether it multiplies in bfloat16 on this processor; None where it was not asked."""
    title: str = ""
    """The toolchain's name as its makers write it."""
    colour: str = ""
    """The colour of its boxes and bars as ``#rrggbb``."""
    letters: str = ""
    """Two letters that stand for it in pictures."""
    pattern: str = ""
    """The pattern of its boxes and bars."""

    def serves(self, kind: str) -> bool:
        """Tell whether it may have something for a kind of device, cpu or cuda."""
        return not self.targets or kind in self.targets


class RuntimeLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A shared library that an exported artifact must carry to run a toolchain's partitions."""

    file: str
    """Path of the library on this machine."""
    name: str
    """File name inside the artifact (its SONAME)."""
    toolchain: str
    version: str
    licence: str
    """SPDX identifier of the library's licence."""
    linked: bool = False
    """Whether it is our own runtime, which model.so names as NEEDED, and not what that loads."""
    python: str = ""
    """The Python module that is needed where the file is no library but Python code, to be run
    before model.so is loaded. The artifact then needs Python. Empty for a library."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device of this machine.

    ``name`` is what pins and candidates call it: cpu, cuda:0.
    """

    name: str
    description: str
    threads: int = 1
    fingerprint: str = ""
    """Hash of processor, caches, instruction sets and kernel: part of a measurement's key."""


class TuneTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kernel, or the main part of one, that a toolchain can tune."""

    workload: str
    """Equal for equal work, in every model and process."""
    description: dict[str, Any] = {}
    """What the tuner needs to make the work again."""
    schedule: str = ""
    """What writes the kernel untuned."""
    weight: float = 1.0
    """Its share of its candidate's time, roughly, in any unit."""


class TuneRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of tuning one workload so far; kept in the measurement store."""

    workload: str
    toolchain: str
    choice: dict[str, Any] = {}
    """What the toolchain shall do instead of its default; empty: nothing better was found."""
    default_us: float | None = None
    tuned_us: float | None = None
    """Both of the bare kernel, in rounds of their own after the search."""
    tried: tuple[str, ...] = ()
    """Names of what was compared; a resumed search leaves them out."""
    failed: tuple[str, ...] = ()
    """Those that crashed, hung or gave wrong numbers."""
    complete: bool = False
    """Nothing is left that promises a gain."""
    seconds: float = 0.0
    reason: str | None = None
    """Why it could not be tuned, where it could not."""

    @property
    def gain(self) -> float:
        """Returns the share of the default's time that the choice saves."""
        if not self.choice or not self.default_us or self.tuned_us is None:
            return 0.0
        return max(0.0, 1.0 - self.tuned_us / self.default_us)


class TuneCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the tuning stage did; part of the run document."""

    workloads: Count = 0
    """Distinct kernels of candidates that could still change the answer."""
    tuned: Count = 0
    """Searched in this run."""
    from_store: Count = 0
    """Whose search an earlier run had completed."""
    improved: Count = 0
    """For which something better than the default is known."""
    tried: Count = 0
    """Kernels compiled and compared in this run."""
    candidates: Count = 0
    """Offered beside their untuned selves."""
    seconds: Figure = 0.0
