"""The settings hold what a user chooses for a run, and the formats of reports."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

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
    "timeline",
    "trace",
]
"""What a report of a run or a session may be written as."""


Objective = Literal["latency", "throughput", "p99"]
"""What a placement is best at."""
MOST_THREADS = 8192
"""Threads above which no number of them is believed: the most processors that Linux can be built
for on x86-64 (``CONFIG_NR_CPUS``)."""


@dataclass(frozen=True)
class Option:
    """How people give a setting.

    Attributes:
        metavar: What a value looks like, which decides how the command line reads it.
        row: The label of its row in the desktop; empty: it has none, or is no field of a form.
        flag: The option of the command line, where it is not the field's name.
    """

    metavar: str | None = None
    row: str = ""
    flag: str = ""


class RunSettings(Checked, frozen=True, kw_only=True, omit_defaults=True):
    """The options of ``collage place``, by value, so that an engine elsewhere can take them.

    The first paragraph below a field is what people read of it: the help of its option on the
    command line, and the tip of its row in the desktop.

    Raises:
        InvalidValue: A value has another type, or no run can have it. Whether a toolchain, a
            target or a node of a name exists is known to the machine and the model only.
    """

    toolchains: Annotated[tuple[str, ...], Option("A,B,…")] = ()
    """Toolchains to use, in order of preference (default: every available one).

    The order counts for greedy partitioning and exact ties.
    """
    target: Annotated[str, Option("NAME", "Target")] = "cpu"
    """Target to place on: cpu, cuda (this machine's device), or cuda:sm_80 for another (default:
    cpu)."""
    threads: Annotated[int, Meta(ge=0, le=MOST_THREADS), Option("N", "Threads")] = 0
    """Threads of every runtime (default: physical cores, or fewer where that is faster).

    0 is that default.
    """
    budget_s: Annotated[float, Meta(gt=0, lt=LONGEST_S), Option("TIME", "Budget", "--budget")] = (
        600.0
    )
    """Time of the whole run, to the exported artifact; the best placement so far is kept when it
    is over (default: 10m)."""
    confirmation: Annotated[Literal["full", "quick"], Option(flag="--confirm")] = "full"
    """Quick: compare only with the last run of --session and the best baseline.

    There are few rounds then, and nothing is calibrated.
    """
    in_place: Annotated[bool, Option(row="Costs", flag="--no-in-model")] = True
    """Calibrate costs on what partitions take inside the best placements.

    These are run whole; what their partitions take there predicts the other costs, and the search
    is asked again.
    """
    tune_budget_s: Annotated[
        float, Meta(ge=0, lt=LONGEST_S), Option("TIME", "Tuning", "--tune-budget")
    ] = 0.0
    """Time for tuning kernels, added to that of the budget (default: none)."""
    shapes: dict[str, tuple[int, ...]] = {}
    objective: Annotated[Objective, Option()] = "latency"
    """Compare medians of single calls (default), runs per second of several instances, or 99th
    percentiles.

    The instances are ``streams``.
    """
    streams: Annotated[int, Meta(ge=1, le=MOST_THREADS)] = 1
    """Instances that run at once, each with ``threads`` threads; for throughput only."""
    precision: Annotated[Precision, Option(row="Precision")] = "float32"
    """Lowest precision to compute in, within the tolerance (default: float32); int8 is for QDQ
    models."""
    tolerance: Annotated[Annotated[float, Meta(gt=0, lt=1)] | None, Option("REL", "Tolerance")] = (
        None
    )
    """Largest error of every output, max|y-r| / max|r| (default: 1e-4, or what three times a change
    in the last bit of inputs and weights makes; 2e-2 with bf16)."""
    seed: Count = 0
    inputs_npz: bytes | None = None
    """Representative inputs: the bytes of an .npz file, keyed by input name; or of an archive of
    such files and of ONNX test data sets (``candidates/input_files.py``)."""
    unchecked: Annotated[bool, Option(row="Outputs")] = False
    """Export also where no output can be checked.

    An output cannot where it has no finite true value.
    """
    placements: tuple[dict[str, str], ...] = ()
    """The user's own placements: ONNX node name → toolchain; each becomes a baseline."""
    allow_runtimes: Annotated[tuple[str, ...], Option("A,B,…", "Runtimes")] = ()
    """Partitions of these toolchains only; the others are measured all the same, so that the
    limit's price is known."""
    max_runtimes: Annotated[Count, Option("N", "At most")] = 0
    """Partitions of at most so many different toolchains (default: any number)."""
    max_artifact_bytes: Annotated[Count, Option("200M", "Artifact", "--max-artifact-size")] = 0
    """Weights and runtime libraries together (default: any size)."""
    max_memory_bytes: Annotated[Count, Option("500M", "Memory", "--max-memory")] = 0
    """Resident memory while running, with Python and TVM's runtime in it (default: any)."""
    licences: Annotated[tuple[str, ...], Option("MIT,BSD,…", "Licences")] = ()
    """Runtime libraries under these licences only, by their SPDX names; BSD means all BSD ones."""
    strict_nan: Annotated[bool, Option(row="NaN")] = False
    """Leave out candidates that make a number of NaN, which the standard hands on."""
    strict: Annotated[bool, Option()] = False
    """Export nothing where others used more than 15% of the processors (status 1)."""
    name: str = ""

    @property
    def promises_accuracy(self) -> bool:
        """Tell whether the run promises a tolerance that rounding could break."""
        return self.precision != FLOAT32 or self.tolerance is not None


class Setting(NamedTuple):
    """A setting that people give."""

    kind: Any
    """Its type."""
    option: Option
    help: str
    """One sentence, with a capital letter and without a full stop."""


@cache
def option_table() -> dict[str, Setting]:
    """Return the fields of ``RunSettings`` that have an ``Option``, by name."""
    (record,) = ast.parse(inspect.getsource(RunSettings)).body
    assert isinstance(record, ast.ClassDef)
    texts = {
        field.target.id: ast.literal_eval(text.value).partition("\n\n")[0]
        for field, text in pairwise(record.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr)
    }
    return {
        name: Setting(get_args(hint)[0], option, " ".join(texts[name].split()).rstrip("."))
        for name, hint in get_type_hints(RunSettings, include_extras=True).items()
        for option in getattr(hint, "__metadata__", ())
        if isinstance(option, Option)
    }
