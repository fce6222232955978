"""Knows which toolchains exist, and what of them works on this machine.

Toolchains of this project stand in ``TOOLCHAINS``; those of other packages are found through the
entry-point group ``collage.toolchains`` (name → ``module:Class``). Classes are imported on first
use, and libraries are probed in a child process: a package that cannot be imported and a library
that crashes on load cost themselves only. What probing found is kept between processes
(``probe_memory``).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import msgspec

from collage_engine.machine.worker import Worker, WorkerCrashed, WorkerTimeout
from collage_engine.records.precision import BFLOAT16, is_reduced
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import Target, ToolchainAbout, ToolchainState
from collage_engine.support.errors import (
    Cancelled,
    CollageError,
    ToolchainError,
    UsageError,
    fault_reason,
)
from collage_engine.support.time_limits import LEAST_S, SHORTEST_RUN_S, WORK_S, Flag, FlagWhen
from collage_engine.toolchains.base import Toolchain
from collage_engine.toolchains.capabilities import ConvertsFormats, EvaluatesOnnx
from collage_engine.toolchains.probe_memory import keep, recall, surroundings
from collage_engine.wording.sentences import instance_title
from collage_engine.wording.titles import with_style

_LOG = logging.getLogger(__name__)

TOOLCHAINS: dict[str, str] = {
    "tvm": "collage_engine.toolchains.tvm.toolchain:TvmToolchain",
    "onnxruntime": "collage_engine.toolchains.onnxruntime.toolchain:OnnxRuntimeToolchain",
    "onednn": "collage_engine.toolchains.onednn.toolchain:OneDnnToolchain",
    "openvino": "collage_engine.toolchains.openvino.toolchain:OpenVinoToolchain",
    "openblas": "collage_engine.toolchains.openblas.toolchain:OpenBlasToolchain",
    "cublas": "collage_engine.toolchains.cublas.toolchain:CublasToolchain",
    "cudnn": "collage_engine.toolchains.cudnn.toolchain:CudnnToolchain",
    "cutlass": "collage_engine.toolchains.cutlass.toolchain:CutlassToolchain",
    "tensorrt": "collage_engine.toolchains.tensorrt.toolchain:TensorrtToolchain",
}
"""Module and class of each toolchain of this project, by name, in the order in which they are
shown."""

GROUP = "collage.toolchains"
"""The entry-point group through which other packages add toolchains."""

NAME = re.compile(r"[a-z][a-z0-9_]*")
"""The names that a toolchain may have: instance ids, pins and options are parsed for them."""

IDLE_S = (LEAST_S + SHORTEST_RUN_S) / 2
"""Seconds that a probe and its children may pass without any processor time: more than any one step
takes, less than the shortest run waits for toolchains. A probe that loads a library, compiles, or
polls the lock of another process that compiles uses some."""

NOT_READY = "it was not ready in time: what it needs is compiled and tried once per machine"
"""Reason of a toolchain whose probe was not waited for to the end; it is asked again next time."""

_JOB = "collage_engine.toolchains.registry:probe_here"

_NEVER = FlagWhen(lambda: False)

Found = TypeVar("Found")
_probed: dict[str, ToolchainState] = {}
_beside: dict[str, threading.Thread] = {}
"""Threads that probe toolchains beside a run, by the toolchains' names."""
_probing = threading.Lock()
"""A lock that is held while the results of probes are read or changed, never while a probe runs."""


@dataclass(frozen=True)
class _Foreign:
    """The toolchains of other packages, and why an entry point of theirs is not used."""

    targets: dict[str, str]
    packages: dict[str, str]
    """The distribution that adds each toolchain, with its version, by the toolchain's name."""
    refused: dict[str, str]


@cache
def _foreign() -> _Foreign:
    """Return the toolchains of other packages, found without importing any of them."""
    foreign = _Foreign({}, {}, {})
    for entry in importlib.metadata.entry_points(group=GROUP):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package"
        if not NAME.fullmatch(entry.name):
            reason = "a name has lower-case letters, digits and underscores only"
        elif entry.name in (*TOOLCHAINS, *foreign.targets):
            owner = foreign.packages.get(entry.name, "Collage Explorer")
            reason = f"the name belongs to a toolchain of {owner} already"
        else:
            foreign.targets[entry.name] = entry.value
            foreign.packages[entry.name] = package
            continue
        foreign.refused[f"{entry.name} ({package})"] = (
            f"{package} adds it by the entry point {entry.name} = {entry.value}, which is not "
            f"used: {reason}"
        )
    return foreign


def _targets() -> dict[str, str]:
    """Return the module and class of every known toolchain, by its name."""
    return TOOLCHAINS | _foreign().targets


def all_names() -> tuple[str, ...]:
    """Return every toolchain, in the order of display and trial."""
    return tuple(_targets())


def check_names(settings: RunSettings) -> None:
    """Raise ``UsageError`` where the settings name a toolchain that does not exist."""
    for field in ("toolchains", "allow_runtimes"):
        for name in getattr(settings, field):
            if name not in all_names():
                raise UsageError(
                    f"--{field.replace('_', '-')}: there is no toolchain {name!r}; known are "
                    f"{', '.join(all_names())}"
                )


@cache
def get(name: str) -> Toolchain:
    """Return the toolchain of that name, imported on first use.

    Raises:
        UsageError: There is none; the text lists the known ones.
        ToolchainError: It cannot be imported; the text names its package and the cause.
    """
    _check(name)
    target = _targets()[name]
    module, _, attribute = target.partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)()
        if not isinstance(made, Toolchain):
            raise TypeError("it is no subclass of collage_engine.toolchains.base.Toolchain")
        if made.about.name != name:
            raise ValueError(f"it calls itself {made.about.name}")
    except (Exception, SystemExit) as error:
        owner = _foreign().packages.get(name, "Collage Explorer")
        raise ToolchainError(
            f"the toolchain {name} of {owner} cannot be loaded from {target}: {fault_reason(error)}"
        ) from error
    return made


def about(name: str) -> ToolchainAbout:
    """Return what the toolchain of that name says of itself; see ``get`` for what it raises."""
    return get(name).about


def title_of(instance: str) -> str:
    """Return what people call a toolchain with its options: ``TVM (precision bf16)``.

    Args:
        instance: The id of an instance, or a toolchain's name; what names none is its own title.
    """

    def title(name: str) -> str:
        with contextlib.suppress(ToolchainError):
            return about(name).title if name in _targets() else name
        return name

    return instance_title(instance, title)


def having(capability: type[Found]) -> Iterator[Found]:
    """Yield every toolchain that has a capability, in their order.

    What cannot be imported has none.
    """
    for name in all_names():
        with contextlib.suppress(ToolchainError):
            toolchain = get(name)
            if isinstance(toolchain, capability):
                yield toolchain


def format_converter() -> ConvertsFormats:
    """Return the toolchain that writes the kernels between two formats of a value."""
    return next(having(ConvertsFormats))  # type: ignore[type-abstract]


def onnx_evaluator() -> EvaluatesOnnx:
    """Return the toolchain that evaluates ONNX models as the oracle."""
    return next(having(EvaluatesOnnx))  # type: ignore[type-abstract]


def probe(
    name: str,
    *,
    anew: bool = False,
    on_child: Callable[[str], None] = lambda name: None,
    ready_by: float = math.inf,
    stop: Flag = _NEVER,
) -> ToolchainState:
    """Return what a child process found out about one toolchain.

    It is asked once per process. An earlier process's answer is taken while what it rests on is as
    it was.

    Args:
        name: The toolchain's name.
        anew: Whether earlier processes' answers do not count.
        on_child: Is called with the name before a child is started, which may compile a runtime.
        ready_by: A moment of the monotonic clock, in seconds; a toolchain without an answer by then
            is ``late``: not available for now.
        stop: Ends the child when it is set.
    """
    _check(name)
    with _probing:
        state = _probed.get(name)
    if state is None:
        state = None if anew else recall(name, _targets()[name])
        if state is None:
            if time.monotonic() >= ready_by:
                return _unavailable(name, NOT_READY, late=True)
            on_child(name)
            state = _probe_in_child(name, ready_by, stop)
            if not state.available and time.monotonic() >= ready_by:
                return _unavailable(name, NOT_READY, late=True)
            if state.fault:
                keep(state, surroundings(name, _targets()[name]))
        with _probing:
            state = _probed.setdefault(name, state)
    return state


def probe_all(
    names: Sequence[str] | None = None,
    *,
    anew: bool = False,
    on_child: Callable[[str], None] = lambda name: None,
    ready_by: float = math.inf,
    waited_for: Collection[str] = (),
    beside: bool = False,
) -> tuple[ToolchainState, ...]:
    """Return the states of the toolchains, in the given order; two children probe at a time.

    Args:
        names: Which ones; None: all, also entry points that are not used, with the reason.
        anew: Whether what this process or an earlier one found before does not count.
        on_child: Is called with the name of each toolchain for which a child is started.
        ready_by: A moment of the monotonic clock, in seconds, after which probes are not waited
            for.
        waited_for: Names of toolchains that are waited for all the same.
        beside: Whether all are probed at once, and those that are not ready in time go on beside
            what the caller does, so that a later call finds them ready.

    Returns:
        The states, each with a colour, letters and a pattern of its own.
    """
    chosen = tuple(names) if names is not None else all_names()
    for name in chosen:
        _check(name)
    if anew:
        forget_probes()
    stop = threading.Event()

    def ask(name: str) -> ToolchainState:
        until = math.inf if name in waited_for else ready_by
        if beside:
            return _probed_beside(name, until)
        return probe(name, anew=anew, on_child=on_child, ready_by=until, stop=stop)

    pool = ThreadPoolExecutor(max_workers=len(chosen) or 1 if beside else 2)
    try:
        states = tuple(pool.map(ask, chosen))
    except BaseException:  # Ctrl-C: what is being probed is ended, the rest not begun
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    finally:
        pool.shutdown()
    if names is None:
        states += tuple(_unavailable(*result) for result in _foreign().refused.items())
    return tuple(map(with_style, states))


def _probed_beside(name: str, ready_by: float) -> ToolchainState:
    """Return the state of a toolchain that is probed in a thread of its own, if it is ready."""
    with _probing:
        known = _probed.get(name) or recall(name, _targets()[name])
        if known is not None:
            return _probed.setdefault(name, known)
        thread = _beside.get(name)
        if thread is None:
            thread = _beside[name] = threading.Thread(target=probe, args=(name,), daemon=True)
            thread.start()
    thread.join(None if ready_by == math.inf else max(0.0, ready_by - time.monotonic()))
    if thread.is_alive():
        return _unavailable(name, NOT_READY, late=True)
    _beside.pop(name, None)
    return probe(name)


def _check(name: str) -> None:
    if name not in _targets():
        listed = ", ".join(all_names())
        raise UsageError(f"unknown toolchain {name!r}; known are {listed}")


def forget_probes() -> None:
    """Forget what this process found; what is kept on disk judges itself."""
    with _probing:
        _probed.clear()


def _probe_in_child(name: str, ready_by: float, stop: Flag) -> ToolchainState:
    before = surroundings(name, _targets()[name])
    in_vain = FlagWhen(lambda: stop.is_set() or time.monotonic() >= ready_by)
    with Worker(_JOB, name="collage-probe") as worker:
        try:
            state: ToolchainState = worker.call(name, WORK_S, in_vain, idle_s=IDLE_S)
        except Cancelled:
            if stop.is_set():
                raise
            return _unavailable(name, NOT_READY, late=True)
        except WorkerTimeout as error:
            took = "took" if error.seconds == WORK_S else "did nothing for"
            reason = f"probing it {took} longer than {error.seconds:g} s"
            reason = f"{reason}; `collage toolchains` tries it again"
            return msgspec.structs.replace(_unavailable(name, reason), fault=True)
        except WorkerCrashed as error:
            return _unavailable(name, f"it ended the process that probes it: {error}")
        except CollageError as error:
            return _unavailable(name, str(error))
    if state.name != name:
        return _unavailable(name, f"its probe speaks for {state.name!r:.40}")
    keep(state, before)
    return state


def _unavailable(name: str, reason: str, *, late: bool = False) -> ToolchainState:
    _LOG.info("toolchain %s is not available: %s", name, reason)
    return ToolchainState(name=name, available=False, reason=reason, late=late)


def described(state: ToolchainState, about: ToolchainAbout) -> ToolchainState:
    """Return a probe's answer, completed by what the toolchain says of itself."""
    same = ("licence", "targets", "title", "colour", "letters", "pattern")
    return msgspec.structs.replace(
        state,
        install=state.install or (None if state.available else about.install or None),
        **{name: getattr(state, name) or getattr(about, name) for name in same},
    )


def probe_here(name: str) -> ToolchainState:
    """Probes a toolchain in this process, a child of the one that asks.

    Raises:
        ToolchainError: It raised an exception, which is no answer and is not kept.
    """
    try:
        toolchain = get(name)
    except ToolchainError as error:
        return _unavailable(name, str(error))
    try:
        state = described(toolchain.probe(), toolchain.about)
        if not state.available or "cpu" not in state.targets:
            return state
        instances = toolchain.instances(Target(), BFLOAT16)
        return msgspec.structs.replace(state, bfloat16=any(map(is_reduced, instances)))
    except (Exception, SystemExit) as error:
        raise ToolchainError(fault_reason(error)) from error
