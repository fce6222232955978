"""The settings hold what a user chooses for a run, and the formats of reports."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from collage_engine.records.precision import FLOAT32, Precision
from collage_engine.support.time_limits import LONGEST_S
from collage_engine.support.typed import Checked, Count

ReportFormat = Literal[
    "html",
    "notebook",
    "csv",
    "latencies",
    "runs",
    "shapes",
    "json",
    "svg",
    "graphml",
    "explorer",
]
"""What a report of a run or a session may be written as."""


Objective = Literal["latency", "throughput", "p99"]
"""What a placement is best at."""
MOST_THREADS = 8192
"""Threads above which no number of them is believed: the most processors that Linux can be built
for on x86-64 (``CONFIG_NR_CPUS``)."""


class RunSettings(Checked, frozen=True, kw_only=True, omit_defaults=True):
    """The options of ``collage place``, by value, so that an engine elsewhere can take them.

    Raises:
        InvalidValue: A value has another type, or no run can have it. Whether a toolchain, a
            target or a node of a name exists is known to the machine and the model only.
    """

    toolchains: tuple[str, ...] = ()
    """Names in the user's order (for greedy partitioning and exact ties); empty: all."""
    target: str = "cpu"
    threads: Annotated[int, Meta(ge=0, le=MOST_THREADS)] = 0
    """0: physical cores, or fewer where the fastest whole model is faster on fewer."""
    budget_s: Annotated[float, Meta(gt=0, lt=LONGEST_S)] = 600.0
    """Seconds of the whole run, from its start to the exported artifact."""
    confirmation: Literal["full", "quick"] = "full"
    """``quick``: the best cover is timed against the placement of the run before and the best
    baseline only, in few rounds, and nothing is calibrated."""
    in_place: bool = True
    """Run covers whole, look into them, and search again on what their partitions take there."""
    tune_budget_s: Annotated[float, Meta(ge=0, lt=LONGEST_S)] = 0.0
    shapes: dict[str, tuple[int, ...]] = {}
    objective: Objective = "latency"
    """What the confirmation compares: the median of single calls, the calls that ``streams``
    instances finish together, or the 99th percentile of single calls."""
    streams: Annotated[int, Meta(ge=1, le=MOST_THREADS)] = 1
    """Instances that run at once, each with ``threads`` threads; for throughput only."""
    precision: Precision = "float32"
    tolerance: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """Bound on the whole model's max_rel_error, such as 0.01 for 1 %; None: the precision's own."""
    seed: Count = 0
    inputs_npz: bytes | None = None
    """Representative inputs: the bytes of an .npz file, keyed by input name; or of an archive of
    such files and of ONNX test data sets (``candidates/input_files.py``)."""
    unchecked: bool = False
    """Export also where no output could be checked, since none has a finite true value."""
    placements: tuple[dict[str, str], ...] = ()
    """The user's own placements: ONNX node name → toolchain; each becomes a baseline."""
    allow_runtimes: tuple[str, ...] = ()
    """Toolchains that the artifact may hold partitions of; empty: all."""
    max_runtimes: Count = 0
    """At most so many different ones; 0: any number."""
    max_artifact_bytes: Count = 0
    """Weights and runtime libraries together; 0: any size."""
    max_memory_bytes: Count = 0
    """Resident memory of the process that runs the placement, at most; 0: any."""
    licences: tuple[str, ...] = ()
    """SPDX identifiers, or families (``BSD``), of allowed runtime libraries; empty: all."""
    strict_nan: bool = False
    """Leave out candidates that do not hand on NaN."""
    strict: bool = False
    """Refuse to export figures that were taken while others used the machine."""
    name: str = ""

    @property
    def promises_accuracy(self) -> bool:
        """Tell whether the run promises a tolerance that rounding could break."""
        return self.precision != FLOAT32 or self.tolerance is not None
