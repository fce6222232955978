"""Runs the child's side of a worker: a warden process, and the server loop below it.

The first process becomes the *warden*: it does nothing but wait for its parent or the server
to end, and then ends everything below it, orphaned grandchildren included (it is their
subreaper). It forks the *server* before any library is loaded; the server answers requests.
Requests and replies travel over a connection of their own: what a library prints to standard
output goes to standard error and can corrupt nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import inspect
import os
import pickle
import resource
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, cast

from collage_engine.machine import logs
from collage_engine.machine.faults import OWN_RISK
from collage_engine.machine.loader.run_artifact import hidden
from collage_engine.machine.logs import LogSettings
from collage_engine.machine.processes import PR_SET_NAME, kill, kill_descendants, prctl
from collage_engine.support import errors

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""The options of Linux's prctl that the child sets (include/uapi/linux/prctl.h)."""


def main(
    target: str, descriptor: int, risk: int, name: str, parent: int, log: dict[str, Any]
) -> None:  # pragma: no cover - runs in the child, where coverage does not look
    """Start the server below a warden. Never returns."""
    settings = LogSettings(**log)
    OWN_RISK.share(risk)
    os.close(risk)
    for inherited in (descriptor, settings.shown_by):
        if inherited >= 0:
            os.set_inheritable(inherited, False)
    os.dup2(2, 1)
    server = os.fork()
    if server:
        os.close(descriptor)
        _warden(server, parent)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # the warden died between fork and prctl
        os._exit(1)
    prctl(PR_SET_NAME, name.encode()[:15])
    import_tvm_without_torch()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    status = 1
    try:
        serve(target, Connection(descriptor), name, settings)
        status = 0
    except BrokenPipeError:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        # sys.exit is not called: libraries' own clean-up at exit may crash or hang.
        os._exit(status)


def _warden(server: int, parent: int) -> None:  # pragma: no cover - as above
    """Wait for the server to end or the parent to close standard input; then end the rest."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_NAME, b"collage-warden")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    poll.register(os.pidfd_open(server), select.POLLIN)
    status: int | None = None
    while status is None:
        ready = poll.poll(2000)  # milliseconds; only orphans need reaping now and then
        if os.getppid() != parent or any(descriptor == 0 for descriptor, _ in ready):
            kill(server)
        while True:
            try:
                ended, code = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if ended == 0:
                break
            if ended == server:
                status = code
    kill_descendants(os.getpid())
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def import_tvm_without_torch() -> None:
    """Let this process's first import of TVM's interface leave PyTorch alone.

    ``tvm_ffi`` and a module of ``tvm.relax`` import ``torch`` wherever it is installed, for
    conversions that nobody here asks for. That takes some seconds and 180 MB in every process that
    loads a placement, brings a second pool of threads, and counts in the memory that a placement is
    said to take. A toolchain may still import it later.
    """
    sys.meta_path.insert(0, _WithoutTorch())


class _WithoutTorch(MetaPathFinder):
    """Finds TVM's modules that import PyTorch where Python does, and executes them without it."""

    MODULES = ("tvm_ffi", "tvm.relax.base_py_module")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.MODULES or sys.modules.get("torch") is not None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def without_torch(module: ModuleType) -> None:
                with hidden("torch"):
                    execute(module)

            spec.loader.exec_module = without_torch  # type: ignore[method-assign]
        return spec


def load_target(target: str) -> Callable[..., Any]:
    """Import ``package.module:function``; a class is instantiated, and its instance called."""
    module, _, name = target.partition(":")
    loaded = getattr(importlib.import_module(module), name)
    return cast(Callable[..., Any], loaded() if inspect.isclass(loaded) else loaded)


def takes_messages(function: Callable[..., Any]) -> bool:
    """Return whether a function has a second positional parameter, for sending messages."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return sum(p.kind in kinds for p in parameters) >= 2


def describe_error(error: BaseException) -> dict[str, Any]:
    """Describe an exception as plain data, because the parent may lack its class.

    One that a room derives from an error of all is described as that one.
    """
    own = (k for k in type(error).__mro__ if k.__module__ == errors.__name__)
    kind = next((k for k in own if k is not errors.CollageError), type(error))
    return {
        "type": kind.__name__,
        "module": kind.__module__,
        "message": str(error),
        "details": getattr(error, "details", None),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _tell_crashes() -> None:
    """Have Python's stack written to standard error when a library crashes.

    This is asked anew for every request: libraries (TVM's among them) put handlers of their own in
    its place when they are loaded.
    """
    faulthandler.disable()
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no standard error
        faulthandler.enable()


def serve(target: str, connection: Connection, name: str, log: LogSettings) -> None:
    """Answer requests until the parent closes the connection.

    The target is imported at the first request, so that an import that fails (or crashes) is
    the answer to it.
    """
    writing = threading.Lock()

    def send(kind: str, body: Any) -> None:
        packed = pickle.dumps((kind, body), protocol=5)
        with writing:  # messages come from any thread
            connection.send_bytes(packed)

    logs.inherit(log, name)
    send("hello", os.getpid())
    function: Callable[..., Any] | None = None
    while True:
        try:
            packed = connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            return
        _tell_crashes()
        try:
            payload = pickle.loads(packed)
            if function is None:
                function = load_target(target)
            if takes_messages(function):
                result = function(payload, lambda body: send("message", body))
            else:
                result = function(payload)
            send("result", result)
        except BrokenPipeError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            send("error", describe_error(error))
