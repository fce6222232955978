"""The settings hold what a user chooses for a run."""

from __future__ import annotations

from typing import Literal

from collage_engine.records.durations import LONGEST_S
from collage_engine.records.errors import InvalidValue
from collage_engine.records.precision import PRECISIONS
from collage_engine.records.ranges import LARGEST_INTEGER
from collage_engine.records.typed import Checked

Objective = Literal["latency", "throughput", "p99"]
"""What a placement is best at."""
MOST_THREADS = 4096
"""Threads above which no number of them is believed; chosen, above the cores of any one machine."""


class RunSettings(Checked, frozen=True, kw_only=True, omit_defaults=True):
    """The options of ``collage place``, by value, so that an engine elsewhere can take them.

    Raises:
        InvalidValue: A value has another type, or no run can have it. Whether a toolchain, a
            target or a node of a name exists is known to the machine and the model only.
    """

    toolchains: tuple[str, ...] = ()
    """Names in the user's order (for greedy partitioning and exact ties); empty: all."""
    target: str = "cpu"
    threads: int = 0
    """0: physical cores, or fewer where the fastest whole model is faster on fewer."""
    budget_s: float = 600.0
    """Seconds of the whole run, from its start to the exported artifact."""
    confirmation: Literal["full", "quick"] = "full"
    """``quick``: the best cover is timed against the placement of the run before and the best
    baseline only, in few rounds, and nothing is calibrated."""
    measure: Literal["needed", "all"] = "needed"
    """``needed``: measure what the best cover could consist of."""
    in_place: bool = True
    """Run covers whole, look into them, and search again on what their partitions take there."""
    tune_budget_s: float = 0.0
    shapes: dict[str, tuple[int, ...]] = {}
    objective: Objective = "latency"
    """What the confirmation compares: the median of single calls, the calls that ``streams``
    instances finish together, or the 99th percentile of single calls."""
    streams: int = 1
    """Instances that run at once, each with ``threads`` threads; for throughput only."""
    precision: str = "float32"
    tolerance: float | None = None
    """Bound on the whole model's max_rel_error; None: the precision's own."""
    seed: int = 0
    inputs_npz: bytes | None = None
    """Representative inputs: the bytes of an .npz file, keyed by input name; or of an archive of
    such files and of ONNX test data sets (``candidates/input_files.py``)."""
    unchecked: bool = False
    """Export also where no output could be checked, since none has a finite true value."""
    placements: tuple[dict[str, str], ...] = ()
    """The user's own placements: ONNX node name → toolchain; each becomes a baseline."""
    allow_runtimes: tuple[str, ...] = ()
    """Toolchains that the artifact may hold partitions of; empty: all."""
    max_runtimes: int = 0
    """At most so many different ones; 0: any number."""
    max_artifact_bytes: int = 0
    """Weights and runtime libraries together; 0: any size."""
    max_memory_bytes: int = 0
    """Resident memory of the process that runs the placement, at most; 0: any."""
    licences: tuple[str, ...] = ()
    """SPDX identifiers, or families (``BSD``), of allowed runtime libraries; empty: all."""
    strict: bool = False
    """Refuse to export figures that were taken while others used the machine."""
    name: str = ""

    def __post_init__(self) -> None:
        """Raise ``InvalidValue`` where no run can have these settings."""
        super().__post_init__()
        if not 0 < self.budget_s < LONGEST_S:
            raise InvalidValue(
                f"budget_s is {self.budget_s!r}: it must be a number of seconds above 0 and below "
                f"{LONGEST_S:g}"
            )
        if not 0 <= self.tune_budget_s < LONGEST_S:
            raise InvalidValue(
                f"tune_budget_s is {self.tune_budget_s!r}: it must be a number of seconds from 0 "
                f"(no tuning) to {LONGEST_S:g}"
            )
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise InvalidValue(
                f"tolerance is {self.tolerance!r}: it must be a relative error above 0 and below "
                "1, such as 0.01 for 1 %"
            )
        if self.precision not in PRECISIONS:
            raise InvalidValue(
                f"there is no precision {self.precision!r}; known are {', '.join(PRECISIONS)}"
            )
        if self.inputs_npz is not None and self.inputs_npz[:2] != b"PK":
            raise InvalidValue("inputs_npz holds no .npz file: give the bytes of one")
        for name, least, most in (
            ("threads", 0, MOST_THREADS),
            ("streams", 1, MOST_THREADS),
            ("seed", 0, LARGEST_INTEGER),
            ("max_runtimes", 0, LARGEST_INTEGER),
            ("max_artifact_bytes", 0, LARGEST_INTEGER),
            ("max_memory_bytes", 0, LARGEST_INTEGER),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidValue(f"{name} is {value}: it must be from {least} to {most}")
