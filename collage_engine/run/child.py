"""The process of the run: jobs on models that stay open between them."""

from __future__ import annotations

import errno
import logging
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.run_control import RunControl
from collage_engine.records.errors import CollageError
from collage_engine.records.placement import Run
from collage_engine.records.results import Opened, RunUpdate
from collage_engine.records.shapes import ShapeChoice
from collage_engine.store.measurement import Measurement
from collage_engine.timing.exchange import Exchange, Stored
from collage_engine.wording import stages as say

_LOG = logging.getLogger(__name__)

ModelKey = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]
"""A model's file and the input shapes that the user chose."""

MODELS_KEPT = 2
"""Models kept in memory; an older one is imported again when needed. Chosen: a person compares
at most a few models, and each holds its weights."""

_open_models: dict[ModelKey, OpenModel] = {}
"""The least recently used model first."""


def serve(payload: tuple[str, dict[str, Any]], send: Callable[[object], None]) -> Any:
    """Do one job in this process.

    Args:
        payload: The job's name and its arguments.
        send: Passes events to the engine. SIGUSR1 cancels the job; SIGUSR2 has a run end soon with
            the best placement that it has.
    """
    cancelled, keep = threading.Event(), threading.Event()
    control = RunControl(send, cancelled, keep)
    signal.signal(signal.SIGUSR1, lambda *_: cancelled.set())
    signal.signal(signal.SIGUSR2, lambda *_: keep.set())
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
        for opened in _open_models.values():
            opened.empty()


def _in_words(error: OSError) -> CollageError:
    """Return what the system refused, as a sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CollageError(say.DISK_FULL.format(path=error.filename or tempfile.gettempdir()))
    where = f"{error.filename}: " if error.filename else ""
    return CollageError(f"{where}{error.strerror or error}")


def _opened(path: str, shapes: dict[str, tuple[int, ...]]) -> OpenModel:
    """Return the model, imported unless it is open and its file has not changed."""
    key = (path, tuple(sorted((name, tuple(shape)) for name, shape in shapes.items())))
    opened = _open_models.pop(key, None)
    if opened is not None and not opened.is_current():
        opened.close()
        opened = None
    if opened is None:
        opened = OpenModel(path, shapes)
    while len(_open_models) >= MODELS_KEPT:
        oldest = next(iter(_open_models))
        _open_models.pop(oldest).close()
    _open_models[key] = opened
    return opened


def _open(control: RunControl, path: str, shapes: dict[str, tuple[int, ...]]) -> Opened:
    started = time.perf_counter()
    opened = _opened(path, shapes)
    return Opened(
        model=opened.model.record,
        graph=opened.model.graph.record,
        seconds=time.perf_counter() - started,
    )


def _resolve_shapes(
    control: RunControl, path: str, choices: tuple[ShapeChoice, ...]
) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Return the sizes of the inputs that each choice of dimensions gives; nothing is imported."""
    from collage_engine.model.dimensions import input_shapes
    from collage_engine.model.onnx_file import read_without_weights

    model = read_without_weights(path)
    return tuple(input_shapes(model, each.dims, each.shapes, path) for each in choices)


def _dimensions(control: RunControl, path: str) -> dict[str, tuple[str, ...]]:
    """Return the inputs that have each dimension that a model names; nothing is imported."""
    from collage_engine.model.dimensions import symbolic_dimensions
    from collage_engine.model.onnx_file import read_without_weights

    found = symbolic_dimensions(read_without_weights(path))
    return {dim: tuple(dict.fromkeys(name for name, _ in at)) for dim, at in found.items()}


def _prepare(control: RunControl, path: str, shapes: dict[str, tuple[int, ...]]) -> None:
    """Have the model open for the job that follows."""
    _opened(path, shapes)


def _forget(control: RunControl, path: str) -> None:
    """Close a model, with all shapes that it was opened with, and free its memory."""
    for key in [key for key in _open_models if key[0] == path]:
        _open_models.pop(key).close()


def _preflight(control: RunControl, path: str, shapes: Any, settings: Any) -> Any:
    from collage_engine.candidates.preflight import preflight

    return preflight(_opened(path, shapes), settings)


def _run(control: RunControl, path: str, shapes: Any, **arguments: Any) -> RunUpdate:
    from collage_engine.run.run import run

    return run(lambda: _opened(path, shapes), control=control, **arguments)


def _run_shared(
    control: RunControl,
    path: str,
    shapes: Any,
    exchange: str,
    known: tuple[Measurement, ...],
    **arguments: Any,
) -> RunUpdate:
    """Do a run as a machine of a farm, which keeps no costs beyond it.

    Args:
        control: Also takes the measurements as they are stored, and the groups for others.
        path: The model.
        shapes: Its input shapes.
        exchange: The folder through which groups are shared with other machines.
        known: Measurements that the farm's coordinator has stored.
        arguments: Those of ``run``.
    """
    store = _opened(path, shapes).store
    store.forget_measurements()
    store.put_many(known)
    store.on_put = lambda measurements: control.emit(Stored(measurements))
    try:
        return _run(control, path, shapes, exchange=Exchange(exchange), **arguments)
    finally:
        store.on_put = None


def _measure(control: RunControl, path: str, shapes: Any, **arguments: Any) -> Any:
    from collage_engine.run.measure_selection import measure_selection

    return measure_selection(_opened(path, shapes), control=control, **arguments)


def _inside(control: RunControl, path: str, shapes: Any, **arguments: Any) -> Any:
    from collage_engine.run.inspect_candidate import inspect_candidate

    return inspect_candidate(_opened(path, shapes), **arguments)


def _export(control: RunControl, path: str, shapes: Any, **arguments: Any) -> Any:
    from collage_engine.run.export_again import export

    return export(_opened(path, shapes), **arguments)


def _export_shapes(
    control: RunControl,
    path: str,
    members: tuple[tuple[dict[str, tuple[int, ...]], dict[str, int], Run], ...],
    **arguments: Any,
) -> Any:
    """Write one artifact with an entry for each of several shapes.

    Args:
        control: Not used; exporting has no progress.
        path: The model.
        members: For each shape the sizes of the inputs, those of the named dimensions, and its run.
        arguments: Those of ``run.export_again.export_together``.
    """
    from collage_engine.run.export_again import export_together

    entries = [(partial(_opened, path, shapes), dims, run) for shapes, dims, run in members]
    return export_together(entries, **arguments)


def _enumerate(control: RunControl, path: str, shapes: Any, settings: Any) -> Any:
    from collage_engine.candidates.preflight import enumerate_only

    return enumerate_only(_opened(path, shapes), settings)


_JOBS: dict[str, Callable[..., Any]] = {
    "open": _open,
    "shapes": _resolve_shapes,
    "dimensions": _dimensions,
    "prepare": _prepare,
    "forget": _forget,
    "preflight": _preflight,
    "enumerate": _enumerate,
    "run": _run,
    "run_shared": _run_shared,
    "measure": _measure,
    "inside": _inside,
    "export": _export,
    "export_shapes": _export_shapes,
}
