"""The pipeline's child process: jobs on models that stay open between them."""

from __future__ import annotations

import errno
import logging
import signal
import tempfile
import time
from collections.abc import Callable
from typing import Any

from collage_engine.candidates.open_model import Workspace
from collage_engine.control.run_control import RunControl
from collage_engine.records.errors import CollageError
from collage_engine.records.results import Opened, RunOutcome

_LOG = logging.getLogger(__name__)
_WORKSPACES: dict[tuple[str, tuple[tuple[str, tuple[int, ...]], ...]], Workspace] = {}
KEPT_OPEN = 2
"""Models kept in memory; an older one is imported again when it is needed."""


def serve(payload: tuple[str, dict[str, Any]], send: Callable[[object], None]) -> Any:
    """Do one job; ``send`` passes events to the engine, and SIGUSR1 cancels the job."""
    control = RunControl(send)
    signal.signal(signal.SIGUSR1, lambda *_: control.cancelled.set())
    name, arguments = payload
    began = time.perf_counter()
    _LOG.info("job %s begins: %s", name, arguments.get("path", ""))
    try:
        with control:
            return _JOBS[name](control=control, **arguments)
    except CollageError as error:
        _LOG.info("job %s: %s", name, error)
        raise
    except OSError as error:
        _LOG.warning("job %s", name, exc_info=True)
        raise _in_words(error) from error
    except Exception:
        _LOG.exception("job %s failed by a defect", name)
        raise
    finally:
        _LOG.info("job %s ends after %.1f s", name, time.perf_counter() - began)
        for workspace in _WORKSPACES.values():
            workspace.empty()


def _in_words(error: OSError) -> CollageError:
    """What the system refused, as a sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CollageError(
            f"no space left on the disk of {error.filename or tempfile.gettempdir()}, where a run "
            "keeps what it needs on the way: free some, or set TMPDIR to a folder with more"
        )
    where = f"{error.filename}: " if error.filename else ""
    return CollageError(f"{where}{error.strerror or error}")


def _workspace(path: str, shapes: dict[str, tuple[int, ...]]) -> Workspace:
    key = (path, tuple(sorted((name, tuple(shape)) for name, shape in shapes.items())))
    workspace = _WORKSPACES.pop(key, None)
    if workspace is not None and not workspace.is_current():
        workspace.close()
        workspace = None
    if workspace is None:
        workspace = Workspace(path, shapes)
    while len(_WORKSPACES) >= KEPT_OPEN:
        oldest = next(iter(_WORKSPACES))
        _WORKSPACES.pop(oldest).close()
    _WORKSPACES[key] = workspace
    return workspace


def _open(control: RunControl, path: str, shapes: dict[str, tuple[int, ...]]) -> Opened:
    started = time.perf_counter()
    workspace = _workspace(path, shapes)
    return Opened(
        model=workspace.model.record,
        graph=workspace.model.graph.record,
        seconds=time.perf_counter() - started,
    )


def _preflight(control: RunControl, path: str, shapes: Any, settings: Any) -> Any:
    from collage_engine.candidates.preflight import preflight

    return preflight(_workspace(path, shapes), settings)


def _run(control: RunControl, path: str, shapes: Any, **arguments: Any) -> RunOutcome:
    from collage_engine.run.run import run

    return run(lambda: _workspace(path, shapes), control=control, **arguments)


def _measure(control: RunControl, path: str, shapes: Any, **arguments: Any) -> Any:
    from collage_engine.run.measure_selection import measure_now

    return measure_now(_workspace(path, shapes), control=control, **arguments)


def _inside(control: RunControl, path: str, shapes: Any, **arguments: Any) -> Any:
    from collage_engine.run.inspect_candidate import inside

    return inside(_workspace(path, shapes), **arguments)


def _export(control: RunControl, path: str, shapes: Any, **arguments: Any) -> Any:
    from collage_engine.run.stages.export import export

    return export(_workspace(path, shapes), **arguments)


def _enumerate(control: RunControl, path: str, shapes: Any, settings: Any) -> Any:
    from collage_engine.candidates.preflight import enumerate_only

    return enumerate_only(_workspace(path, shapes), settings)


_JOBS: dict[str, Callable[..., Any]] = {
    "open": _open,
    "preflight": _preflight,
    "enumerate": _enumerate,
    "run": _run,
    "measure": _measure,
    "inside": _inside,
    "export": _export,
}
