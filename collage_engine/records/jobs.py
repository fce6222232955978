"""The jobs of the process of the run: requests, their answers, and how long each may take.

A request is pickled to the process (``run.child``), which answers with an object of the type that
the request's class names, ``Job[Answer]``. A job that says nothing for as long as its limit is
given up, and its process is ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from collage_engine.records.answers import InsideAnswer, Opened, RunUpdate
from collage_engine.records.candidate import Candidate, CandidateRecord
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Profile, Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import OpenSizes, PaddingProofs, ShapeChoice, Sharing
from collage_engine.records.toolchain import ToolchainState
from collage_engine.support.time_limits import JOB_S, WORK_S

Answer = TypeVar("Answer")
Shapes = dict[str, tuple[int, ...]]
"""Shapes of a model's inputs that the user chose, by name."""


@dataclass(frozen=True, kw_only=True)
class Job(Generic[Answer]):
    """A request for one job on a model."""

    path: str
    """The model's file."""

    name: ClassVar[str]
    """What the job is called in sentences and in the log."""
    limit_s: ClassVar[float] = JOB_S
    """Seconds without any event, or the answer, after which the job is given up."""
    opens: ClassVar[bool] = False
    """Whether the job only opens the model or reads its file: its end says that it cannot be."""


@dataclass(frozen=True, kw_only=True)
class ModelJob(Job[Answer]):
    """A job on a model that is opened first, within the limit of opening."""

    shapes: Shapes


@dataclass(frozen=True, kw_only=True)
class OpenModelJob(Job[Opened]):
    """Import a model."""

    shapes: Shapes
    name = "open"
    limit_s = WORK_S
    opens = True


@dataclass(frozen=True, kw_only=True)
class ResolveShapesJob(Job[tuple[Shapes, ...]]):
    """Find the sizes of the inputs that each choice of dimensions gives; nothing is imported."""

    choices: tuple[ShapeChoice, ...]
    inputs_npz: bytes | None = None
    """The user's representative inputs, which say what the choices leave open."""
    name = "shapes"
    limit_s = WORK_S
    opens = True


@dataclass(frozen=True, kw_only=True)
class DimensionsJob(Job[OpenSizes]):
    """Find the sizes of inputs that a model leaves open; nothing is imported."""

    name = "dimensions"
    limit_s = WORK_S
    opens = True


@dataclass(frozen=True, kw_only=True)
class PaddingJob(Job[PaddingProofs]):
    """Prove along which dimensions inputs may be padded; nothing is imported."""

    dims: tuple[str, ...]
    name = "padding"
    limit_s = WORK_S
    opens = True


@dataclass(frozen=True, kw_only=True)
class AnnotateJob(Job[None]):
    """Write the model's file again, with metadata in its nodes; nothing is imported."""

    notes: dict[str, dict[str, str]]
    """Metadata by the node's name."""
    out: str
    name = "annotate"
    limit_s = WORK_S


@dataclass(frozen=True, kw_only=True)
class ProfileJob(ModelJob[tuple[Profile, ToolchainState]]):
    """Profile a model by a runtime's own means."""

    settings: RunSettings
    toolchain: str
    name = "profile"
    limit_s = WORK_S


@dataclass(frozen=True, kw_only=True)
class ReadProfileJob(Job[tuple[Profile, ToolchainState]]):
    """Read what a runtime's tools wrote of a model (``path``); the model itself is not needed."""

    name = "read profile"
    limit_s = WORK_S
    opens = True


@dataclass(frozen=True, kw_only=True)
class MenuJob(ModelJob[RunUpdate]):
    """Find the candidates of a run, with the costs that are stored; nothing is measured."""

    settings: RunSettings
    name = "menu"


@dataclass(frozen=True, kw_only=True)
class RunJob(ModelJob[RunUpdate]):
    """Do a whole run; see ``run.run``."""

    settings: RunSettings
    pins: tuple[Pin, ...] = ()
    out: str | None = None
    run_id: str
    previous: Run | None = None
    spent_s: float = 0.0
    name = "run"


@dataclass(frozen=True, kw_only=True)
class MeasureJob(ModelJob[list[CandidateRecord]]):
    """Measure some operators as one partition; see ``run.measure_selection``."""

    settings: RunSettings
    nodes: tuple[int, ...]
    toolchains: tuple[str, ...] = ()
    longer: bool = False
    name = "measure"


@dataclass(frozen=True, kw_only=True)
class InspectJob(ModelJob[InsideAnswer]):
    """Show what a candidate was compiled to, or what a node holds."""

    candidate: Candidate | None
    node: int | None
    name = "inside"


@dataclass(frozen=True, kw_only=True)
class ExportJob(ModelJob[bytes | None]):
    """Write a run's placement as an artifact, or answer with it as an archive."""

    run: Run
    out: str | None
    name = "export"


@dataclass(frozen=True, kw_only=True)
class ExportShapesJob(Job[tuple[bytes | None, Sharing]]):
    """Write one artifact with an entry for each of several shapes."""

    members: tuple[tuple[Shapes, dict[str, int], Run], ...]
    """For each shape the sizes of the inputs, those of the named dimensions, and its run."""
    out: str | None
    nearest: bool
    name = "export_shapes"


@dataclass(frozen=True, kw_only=True)
class JobCall:
    """What the process is sent: a request, and what its parent knows of toolchains."""

    job: Job[Any]
    left_out: dict[str, str] = field(default_factory=dict)
    """Toolchains that ended the process when they were asked about a model, with the reasons."""
    marker: str | None = None
    """The file in which the process notes whom it asks (``machine.faults``)."""
