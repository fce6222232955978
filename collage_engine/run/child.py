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
from pathlib import Path
from typing import Any

from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.faults import RiskMarker
from collage_engine.machine.run_control import RunControl
from collage_engine.records import jobs
from collage_engine.records.answers import InsideAnswer, Opened, RunUpdate
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.jobs import JobCall
from collage_engine.records.placement import Profile
from collage_engine.records.shapes import OpenSizes, PaddingProofs, Sharing
from collage_engine.records.toolchain import ToolchainState
from collage_engine.support.errors import CollageError
from collage_engine.toolchains.asking import note_questions

_LOG = logging.getLogger(__name__)

ModelKey = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]
"""A model's file and the input shapes that the user chose."""

MODELS_KEPT = 2
"""Models kept in memory; an older one is imported again when needed. Chosen: a person compares
at most a few models, and each holds its weights."""

_open_models: dict[ModelKey, OpenModel] = {}
"""The least recently used model first."""


def serve(call: JobCall, send: Callable[[object], None]) -> Any:
    """Do one job in this process.

    Args:
        call: The job, and what the parent knows of toolchains.
        send: Passes events to the engine. SIGUSR1 cancels the job; SIGUSR2 has a run end soon with
            the best placement that it has.

    Returns:
        The job's answer.
    """
    cancelled, keep = threading.Event(), threading.Event()
    control = RunControl(send, cancelled, keep)
    signal.signal(signal.SIGUSR1, lambda *_: cancelled.set())
    signal.signal(signal.SIGUSR2, lambda *_: keep.set())
    job = call.job
    began = time.perf_counter()
    _LOG.info("job %s begins: %s", job.name, job.path)
    note_questions(RiskMarker(call.marker) if call.marker else None, control.left_s)
    for toolchain, reason in call.left_out.items():
        control.faults.leave_out(toolchain, reason)
    try:
        with control:
            return DO[type(job)](job, control)
    except CollageError as error:
        _LOG.info("job %s: %s", job.name, error)
        raise
    except OSError as error:
        _LOG.warning("job %s", job.name, exc_info=True)
        raise _in_words(error) from error
    except Exception:
        _LOG.exception("job %s failed by a defect", job.name)
        raise
    finally:
        _LOG.info("job %s ends after %.1f s", job.name, time.perf_counter() - began)
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


def _open(job: jobs.OpenModelJob, control: RunControl) -> Opened:
    started = time.perf_counter()
    opened = _opened(job.path, job.shapes)
    return Opened(
        model=opened.model.record,
        graph=opened.model.graph.record,
        seconds=time.perf_counter() - started,
    )


def _resolve_shapes(job: jobs.ResolveShapesJob, control: RunControl) -> tuple[jobs.Shapes, ...]:
    from collage_engine.candidates.input_files import stated_sizes
    from collage_engine.model.dimensions import input_shapes, open_inputs
    from collage_engine.model.onnx_file import read_without_weights

    model = read_without_weights(job.path)
    content = job.inputs_npz
    arrays = stated_sizes(content, list(open_inputs(model))) if content is not None else {}
    return tuple(
        input_shapes(model, each.dims, each.shapes, job.path, arrays) for each in job.choices
    )


def _padding(job: jobs.PaddingJob, control: RunControl) -> PaddingProofs:
    from collage_engine.model.onnx_file import read_without_weights
    from collage_engine.model.padding import paddable_dimensions

    return paddable_dimensions(read_without_weights(job.path), job.dims)


def _dimensions(job: jobs.DimensionsJob, control: RunControl) -> OpenSizes:
    from collage_engine.model.dimensions import open_sizes
    from collage_engine.model.onnx_file import read_without_weights

    return open_sizes(read_without_weights(job.path))


def _annotate(job: jobs.AnnotateJob, control: RunControl) -> None:
    from collage_engine.model.own_file import write_annotated

    write_annotated(Path(job.path), job.notes, Path(job.out))


def _profile(job: jobs.ProfileJob, control: RunControl) -> tuple[Profile, ToolchainState]:
    from collage_engine.run.profile import profile_model

    return _described(profile_model(_opened(job.path, job.shapes), job.settings, job.toolchain))


def _read_profile(job: jobs.ReadProfileJob, control: RunControl) -> tuple[Profile, ToolchainState]:
    from collage_engine.run.profile import read_profile

    return _described(read_profile(Path(job.path)))


def _described(profile: Profile) -> tuple[Profile, ToolchainState]:
    """Return a profile, and how its runtime is called and drawn."""
    from collage_engine.toolchains.registry import described, get

    state = ToolchainState(name=profile.toolchain, available=True)
    return profile, described(state, get(profile.toolchain).about)


def _menu(job: jobs.MenuJob, control: RunControl) -> RunUpdate:
    return _opened(job.path, job.shapes).menu(job.settings, faults=control.faults).update


def _run(job: jobs.RunJob, control: RunControl) -> RunUpdate:
    from collage_engine.run.run import run

    return run(lambda: _opened(job.path, job.shapes), job, control)


def _measure(job: jobs.MeasureJob, control: RunControl) -> list[CandidateRecord]:
    from collage_engine.run.measure_selection import measure_selection

    return measure_selection(_opened(job.path, job.shapes), job, control)


def _inspect(job: jobs.InspectJob, control: RunControl) -> InsideAnswer:
    from collage_engine.run.inspect_candidate import inspect_candidate

    opened = _opened(job.path, job.shapes)
    return inspect_candidate(opened, candidate=job.candidate, node=job.node)


def _export(job: jobs.ExportJob, control: RunControl) -> bytes | None:
    from collage_engine.run.export_again import export

    return export(_opened(job.path, job.shapes), run=job.run, out=job.out)


def _export_shapes(job: jobs.ExportShapesJob, control: RunControl) -> tuple[bytes | None, Sharing]:
    from collage_engine.run.export_again import export_together

    entries = [(partial(_opened, job.path, shapes), dims, run) for shapes, dims, run in job.members]
    return export_together(entries, out=job.out, nearest=job.nearest)


DO: dict[type[jobs.Job[Any]], Callable[[Any, RunControl], Any]] = {
    jobs.OpenModelJob: _open,
    jobs.ResolveShapesJob: _resolve_shapes,
    jobs.DimensionsJob: _dimensions,
    jobs.AnnotateJob: _annotate,
    jobs.PaddingJob: _padding,
    jobs.ProfileJob: _profile,
    jobs.ReadProfileJob: _read_profile,
    jobs.MenuJob: _menu,
    jobs.RunJob: _run,
    jobs.MeasureJob: _measure,
    jobs.InspectJob: _inspect,
    jobs.ExportJob: _export,
    jobs.ExportShapesJob: _export_shapes,
}
"""What does each job."""
