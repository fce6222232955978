"""The process of the run: jobs on models that stay open between them."""

from __future__ import annotations

import errno
import logging
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.run_control import RunControl
from collage_engine.model.dimensions import input_shapes, open_inputs, open_sizes
from collage_engine.model.onnx_file import read_without_weights
from collage_engine.records import protocol as p
from collage_engine.records.answers import InsideAnswer, RunUpdate
from collage_engine.records.placement import Profile
from collage_engine.records.protocol import Job, Shapes
from collage_engine.records.shapes import OpenSizes, ShapeChoice
from collage_engine.records.toolchain import ToolchainState
from collage_engine.support.errors import CollageError
from collage_engine.toolchains import asking
from collage_engine.toolchains.registry import described, get, title_of

_LOG = logging.getLogger(__name__)

ModelKey = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]
"""A model's file and the input shapes that the user chose."""

MODELS_KEPT = 2
"""Models kept in memory; an older one is imported again when needed. Chosen: a person compares
at most a few models, and each holds its weights."""

_open_models: dict[ModelKey, OpenModel] = {}
"""The least recently used model first."""


def serve(job: Job[Any], send: Callable[[object], None]) -> Any:
    """Do one job in this process.

    Args:
        job: The request, and what it concerns of a document.
        send: Passes events to the engine. SIGUSR1 cancels the job; SIGUSR2 has a run end soon with
            the best placement that it has.

    Returns:
        The request's outcome.
    """
    cancelled, keep = threading.Event(), threading.Event()
    control = RunControl(send, cancelled, keep)
    control.faults.title_of = title_of
    signal.signal(signal.SIGUSR1, lambda *_: cancelled.set())
    signal.signal(signal.SIGUSR2, lambda *_: keep.set())
    method = job.request.method
    began = time.perf_counter()
    _LOG.info("%s begins: %s", method, job.path)
    asking.job_left_s = control.left_s
    for toolchain, reason in job.left_out.items():
        control.faults.leave_out(toolchain, reason)
    try:
        with control:
            return DO[type(job.request)](job, control)
    except CollageError as error:
        _LOG.info("%s: %s", method, error)
        raise
    except OSError as error:
        _LOG.warning("%s", method, exc_info=True)
        raise _in_words(error) from error
    except Exception:
        _LOG.exception("%s failed by a defect", method)
        raise
    finally:
        _LOG.info("%s ends after %.1f s", method, time.perf_counter() - began)
        for opened in _open_models.values():
            opened.empty()


def _in_words(error: OSError) -> CollageError:
    """Return what the system refused, as a sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CollageError(
            f"no space left on the disk of {error.filename or tempfile.gettempdir()}, where a run "
            "keeps what it needs on the way: free some, or set TMPDIR to a folder with more"
        )
    where = f"{error.filename}: " if error.filename else ""
    return CollageError(f"{where}{error.strerror or error}")


def _opened(path: str, shapes: Shapes) -> OpenModel:
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


def _of(job: Job[Any]) -> OpenModel:
    """Return the model that a job is about."""
    return _opened(job.path, job.shapes)


def _open(job: Job[p.ModelOpen], control: RunControl) -> p.Imported:
    request, shapes = job.request, job.shapes
    if request.inputs_npz is not None or () in request.shapes.values():
        (shapes,) = _sizes(job.path, (ShapeChoice(shapes=shapes),), request.inputs_npz)
    model = _opened(job.path, shapes).model
    return model.record, model.graph.record


def _sizes(
    path: str, choices: Sequence[ShapeChoice], inputs_npz: bytes | None
) -> tuple[Shapes, ...]:
    """Return the sizes of a model's inputs that each choice, and then the user's inputs, give."""
    from collage_engine.candidates.input_files import stated_sizes

    model = read_without_weights(path)
    arrays = stated_sizes(inputs_npz, list(open_inputs(model))) if inputs_npz is not None else {}
    return tuple(
        input_shapes(model, choice.dims, choice.shapes, path, arrays) for choice in choices
    )


def _resolve_shapes(job: Job[p.ShapesResolve], control: RunControl) -> tuple[Shapes, ...]:
    return _sizes(job.path, job.request.choices, job.request.inputs_npz)


def _dimensions(job: Job[p.ModelDimensions], control: RunControl) -> OpenSizes:
    return open_sizes(read_without_weights(job.path))


def _profile(job: Job[p.ProfileMake], control: RunControl) -> tuple[Profile, ToolchainState]:
    from collage_engine.run.profile import profile_model

    return _described(profile_model(_of(job), job.request.settings, job.request.toolchain))


def _read_profile(job: Job[p.ProfileRead], control: RunControl) -> tuple[Profile, ToolchainState]:
    from collage_engine.run.profile import read_profile

    return _described(read_profile(Path(job.path)))


def _described(profile: Profile) -> tuple[Profile, ToolchainState]:
    """Return a profile, and how its runtime is called and drawn."""
    state = ToolchainState(name=profile.toolchain, available=True)
    return profile, described(state, get(profile.toolchain).about)


def _catalog(job: Job[p.Enumerate], control: RunControl) -> RunUpdate:
    return _of(job).catalog(job.request.settings, faults=control.faults).update


def _run(job: Job[p.RunStart], control: RunControl) -> RunUpdate:
    from collage_engine.run.run import run

    return run(partial(_of, job), job, control)


def _measure(job: Job[p.MeasureNow], control: RunControl) -> p.CandidatesAnswer:
    from collage_engine.run.measure_selection import measure_selection

    return p.CandidatesAnswer(candidates=tuple(measure_selection(_of(job), job, control)))


def _inspect(job: Job[p.InsideQuery], control: RunControl) -> InsideAnswer:
    from collage_engine.run.inspect_candidate import inspect

    return inspect(_of(job), job.candidate, job.request.node)


def _export(job: Job[p.ExportArtifact], control: RunControl) -> p.Exported:
    from collage_engine.run.export import export

    (run,) = job.runs
    return p.Exported(path=job.out, content=export(_of(job), run=run, out=job.out))


def _export_shapes(job: Job[p.ExportShapes], control: RunControl) -> p.Exported:
    from collage_engine.run.export import export_together

    entries = [
        (partial(_opened, job.path, choice.shapes), choice.dims, run)
        for choice, run in zip(job.choices, job.runs, strict=True)
    ]
    content, sharing = export_together(entries, out=job.out, others=job.request.others)
    return p.Exported(path=job.out, content=content, sharing=sharing)


DO: dict[type[p.ChildRequest[Any, Any]], Callable[[Any, RunControl], Any]] = {
    p.ModelOpen: _open,
    p.ModelDimensions: _dimensions,
    p.ShapesResolve: _resolve_shapes,
    p.ProfileMake: _profile,
    p.ProfileRead: _read_profile,
    p.Enumerate: _catalog,
    p.RunStart: _run,
    p.MeasureNow: _measure,
    p.InsideQuery: _inspect,
    p.ExportArtifact: _export,
    p.ExportShapes: _export_shapes,
}
"""What does the work of each request."""
