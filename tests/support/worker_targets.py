"""Defines what children in the worker tests run: functions that answer, fail, crash and hang."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from collage_engine.machine.worker import call_in_child
from collage_engine.support.errors import InfeasibleError, ToolchainError
from collage_engine.toolchains.runtime.builder import CannotBuild


def echo(payload: Any) -> Any:
    return payload


def do(what: dict[str, Any], send: Callable[[Any], None]) -> Any:
    """Behaves as the key ``do`` says, for example by answering or crashing."""
    match what["do"]:
        case "pid":
            return os.getpid()
        case "env":
            return os.environ.get(what["name"])
        case "segv":
            print("libfoo: bad pointer", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        case "crash-silently":
            return ctypes.string_at(0)
        case "log":
            logging.getLogger("collage_engine.tests").log(what["level"], "%s", what["text"])
            if what.get("below"):
                call_in_child(f"{__name__}:do", {**what, "below": False, "text": "grandchild"})
        case "exit":
            print("giving up", file=sys.stderr, flush=True)
            os._exit(what["status"])
        case "sys.exit":
            sys.exit(what["status"])
        case "sleep":
            time.sleep(what["s"])
        case "compute":
            began = time.process_time()
            while time.process_time() - began < what["s"]:
                pass
            return time.process_time() - began
        case "raise":
            raise ValueError(what["text"])
        case "raise-ours":
            raise ToolchainError(what["text"])
        case "raise-derived":
            raise CannotBuild(what["text"], "advice")
        case "infeasible":
            raise InfeasibleError("no cover", {"reason": "because"})
        case "messages":
            for number in range(what["n"]):
                send({"number": number})
                time.sleep(what.get("every_s", 0.0))
            if what.get("die"):
                os.kill(os.getpid(), signal.SIGKILL)
            return what["n"]
        case "flood":
            line = b"x" * 1023 + b"\n"
            for _ in range(what["lines"]):
                os.write(1, line)
            print("last words", flush=True)
            return "done"
        case "allocate":
            held = []
            for _ in range(what["mib"]):
                held.append(b"y" * (1 << 20))
                time.sleep(0.001)
            return len(held)
        case "family":
            # A child, and a grandchild in a session of its own whose parent is gone.
            plain = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            script = (
                "import subprocess, sys;"
                "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
                " start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL);"
                "print(p.pid)"
            )
            orphan = int(subprocess.check_output([sys.executable, "-c", script]))
            send([os.getpid(), plain.pid, orphan])
            time.sleep(what.get("s", 600))
            return "alive"
        case "unpicklable":
            return lambda: None
        case "big":
            return len(what["bytes"]), b"z" * what["n"]
    return None


class Counter:
    """A target that keeps state between calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, payload: int) -> int:
        self.count += payload
        return self.count


class Unpicklable:
    """A value that can be pickled in the child, but not unpickled in the parent."""

    def __reduce__(self) -> Any:
        return (os.path.join, (1, 2))
