"""The options of every command, as tables: a class for each group, a line for each option.

What stands below an option is its help. ``%%`` in it is a per cent sign, since argparse formats it.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
from functools import cache, partial
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from collage_engine.cli import options as read
from collage_engine.cli.options import AddDimension, AddShape
from collage_engine.records.time_limits import ANSWER_S

FARM_PORT = 8786
"""Port of a farm's scheduler where none is named: the default of ``dask scheduler --port``."""
MAX_SLOWER = 0.03
"""By what share ``collage check`` lets a model be slower by default; the race drops who is slower
by as much."""
CHECK_BUDGET_S = 120.0
"""Seconds for placing a model that is checked; chosen: most of what a run finds it has by then."""


class Argument(NamedTuple):
    """An option, or what is given without one, and how argparse reads it."""

    is_option: bool
    flags: tuple[str, ...]
    """Empty: ``--`` and the name of the attribute, which is also that of the result."""
    arguments: dict[str, Any]
    """Of ``add_argument``."""


def option(*flags: str, **arguments: Any) -> Argument:
    """Return an option of a table."""
    return Argument(True, flags, arguments)


def positional(**arguments: Any) -> Argument:
    """Return an argument of a table that has no flag."""
    return Argument(False, (), arguments)


class OptionTable:
    """A table of options.

    Attributes:
        TITLE: The title of their group in the help; empty: they have none.
    """

    TITLE: ClassVar[str] = ""


@cache
def _help_texts() -> dict[str, dict[str, str]]:
    """Return the strings below the options, by the table's and the option's name."""
    found: dict[str, dict[str, str]] = {}
    for table in ast.parse(inspect.getsource(sys.modules[__name__])).body:
        if isinstance(table, ast.ClassDef):
            texts = found[table.name] = {}
            for statement, below in pairwise(table.body):
                if isinstance(statement, ast.Assign) and isinstance(below, ast.Expr):
                    name, text = statement.targets[0], below.value
                    if isinstance(name, ast.Name) and isinstance(text, ast.Constant):
                        texts[name.id] = " ".join(str(text.value).split())
    return found


def add_options(parser: argparse.ArgumentParser, table: type[OptionTable]) -> None:
    """Add the options of a table to a command."""
    group: Any = parser.add_argument_group(table.TITLE) if table.TITLE else parser
    for name, argument in vars(table).items():
        if isinstance(argument, Argument):
            about = argument.arguments | {"help": _help_texts()[table.__name__][name]}
            if argument.is_option:
                flags = argument.flags or ("--" + name.replace("_", "-"),)
                group.add_argument(*flags, dest=name, **about)
            else:
                group.add_argument(name, **about)


class PlaceOptions(OptionTable):
    """What ``collage place`` places, where to, and how it is judged."""

    model = positional(nargs="+")
    """the model, an .onnx file; several are placed over one farm"""
    output = option("-o", "--output", required=True, metavar="DIR")
    """folder of the compiled artifact; of several models, of their artifacts' folders"""
    farm = option(default="", metavar="ADDRESS")
    """place on the machines of a farm, a task for each model and shape: its address, such as
    tls://HOST:8786 (default: on this machine)"""
    kind = option(default="", metavar="NAME")
    """of the farm's machines only those of one kind, as `collage farm join` prints it: for runs
    whose times are compared with each other (default: any)"""
    budget = option(type=read.duration, default=600.0, metavar="TIME")
    """time of the whole run, from its start to the artifact (default: 10m); the run ends sooner
    when nothing is left that could improve the placement"""
    confirm = option(choices=("full", "quick"), default="full")
    """quick: compare the placement only with that of the last run of --session and with the best
    baseline, in few rounds (default: full, with all baselines)"""
    measure = option(choices=("needed", "all"), default="needed")
    """needed (default): measure what the best placement could consist of"""
    tune_budget = option(type=partial(read.duration, or_none=True), default=0.0, metavar="TIME")
    """time for tuning kernels, added to that of --budget (default: none)"""
    in_place = option("--no-in-place", action="store_false")
    """search on isolated costs; do not run whole placements to learn what candidates cost in this
    model"""
    unchecked = option(action="store_true")
    """export also where no output can be checked, since none of its true values is finite"""
    tolerance = option(type=read.relative_error, metavar="REL")
    """largest max_rel_error of the whole model, kept on the inputs end to end (default: 2e-2 with
    bf16, else by the model's element types, and for each output three times what it moves by when
    inputs and weights change in the last bit, if that is more)"""
    objective = option(choices=("latency", "throughput", "p99"), default="latency")
    """what the confirmation compares: the median of single calls (default), the 99th percentile of
    single calls, or how many runs several instances finish together; throughput chooses the number
    of instances and the threads of each"""
    strict = option(action="store_true")
    """refuse to export figures that were taken while other programs or guests used more than 15%%
    of the processors (looked for before the run and after its last measurement): status 1 and no
    artifact"""
    pin = option(action="append", default=[], metavar="'GLOB[,GLOB]=WHAT'")
    """these nodes: on a toolchain (WHAT is its NAME), never on it (!NAME), as one partition by
    themselves (exactly, exactly:NAME), in one partition (together), on a device (@DEVICE); globs
    match ONNX node names, a name as it stands or in double quotes means that node alone ('"a[0],
    b"=tvm'); repeatable"""
    placement = option(action="append", metavar="FILE")
    """a placement of your own (JSON: node name → toolchain), measured as a baseline"""
    session = option(metavar="FILE")
    """keep everything in this .collage file"""


class RunOptions(OptionTable):
    """What the commands that enumerate candidates share."""

    TITLE = "what to use"

    toolchains = option(type=read.names, default=(), metavar="A,B,…")
    """toolchains to use, in order of preference (default: every available one)"""
    target = option(default="cpu", metavar="NAME")
    """target to place on (default: cpu)"""
    threads = option(type=read.positive, default=0, metavar="N")
    """threads of every runtime (default: physical cores, or fewer where that is faster)"""
    shape = option(action=AddShape, type=read.shape, default=[], metavar="NAME=1,3,224,224")
    """sizes of an input whose shape the model leaves open; repeatable"""
    precision = option(choices=("float32", "tf32", "fp16", "bf16", "int8"), default="float32")
    """lowest precision candidates may compute in: float32 (default); bf16, or with --target cuda
    tf32 and fp16, where that is faster and the tolerance is kept; int8, which a model must say
    itself (QDQ)"""


class InputOptions(OptionTable):
    """The inputs on which models run."""

    inputs = option(action="append", metavar="FILE|DIR")
    """representative inputs: an .npz file with one array for each input's name, or several samples
    along one more leading axis; an .npy file, where the model has one input; a folder of ONNX test
    data (test_data_set_*/input_*.pb; a warning says where output_*.pb are not what the model
    computes) or of NAME.npy; may be repeated; outputs are checked on all samples, times are those
    of the first (default: random ones, on which outputs are finite)"""


class ShapesOptions(OptionTable):
    """Several shapes for one artifact."""

    TITLE = "which shapes"

    dim = option(action=AddDimension, type=read.dimension, default=[], metavar="NAME=1,4,16")
    """sizes of a dimension that the model names; repeatable, all combinations are placed and stand
    in one artifact"""
    shapes = option(metavar="FILE")
    """the combinations themselves: a JSON list of objects, dimension to size or input to list of
    sizes"""
    nearest = option(action="store_true")
    """the artifact pads inputs to the next larger shape that it has, along the dimensions where the
    graph proves that this changes no result"""


class LimitOptions(OptionTable):
    """Limits on what is deployed; each gets a verdict with its price."""

    TITLE = "what the artifact may hold"

    allow_runtimes = option(type=read.names, default=(), metavar="A,B,…")
    """partitions of these toolchains only; the others are measured for the price"""
    max_runtimes = option(type=read.positive, default=0, metavar="N")
    """partitions of at most N different toolchains"""
    max_artifact_size = option(type=read.size, default=0, metavar="200M")
    """weights and runtime libraries together"""
    max_memory = option(type=read.size, default=0, metavar="500M")
    """resident memory while running, as measured with Python and TVM's runtime in it"""
    licences = option(type=read.licences, default=(), metavar="Apache-2.0,MIT,…")
    """runtime libraries under these licences only (SPDX; BSD means all BSD ones)"""


class ToolchainsOptions(OptionTable):
    """What is done with toolchains, and with which."""

    action = positional(nargs="?", choices=("check", "new"))
    """check: examine whether a toolchain keeps what the engine expects of it; new: write a package
    with a toolchain in Python alone, for a library that runs ONNX models"""
    names = positional(nargs="*", metavar="NAME")
    """the toolchains to check; what to call the new one"""
    all = option(action="store_true")
    """check every toolchain that is used unasked"""


class ModelOptions(OptionTable):
    """A model."""

    model = positional()
    """the model, an .onnx file"""


class SessionOptions(OptionTable):
    """A session, and one of its shapes."""

    session = positional()
    """a .collage file, as `collage place --session` writes"""
    dim = option(action=AddDimension, type=read.one_size, default=[], metavar="NAME=4")
    """of a session for several shapes: the one in which the dimension has this size; repeatable
    (default: the first one)"""


class ExplainOptions(OptionTable):
    """The node that is explained."""

    node = positional()
    """operator number, or ONNX node name"""
    run = option(default="", metavar="N")
    """id, name or number of a run; the newest by default"""


class CompareOptions(OptionTable):
    """The two runs."""

    run = positional()
    """id, name or number of a run; `last` is the newest; or a runtime's profile of the model, as
    for `collage diagnose --profile`"""
    other = positional()
    """the run or the profile to compare with it"""


class DiagnoseOptions(OptionTable):
    """Whose profile it is, and whether the model is placed, too."""

    runtime = option(default="", metavar="NAME")
    """run the model in this runtime as its users do, with its own profiling: onnxruntime or
    openvino"""
    profile = option(default="", metavar="FILE")
    """read what a runtime's tools wrote instead: ONNX Runtime's profile (JSON), benchmark_app's
    counters (CSV, JSON), trtexec's layers (--exportProfile, --exportLayerInfo)"""
    budget = option(type=read.duration, default=60.0, metavar="TIME")
    """time of the whole command, in which the model is also placed (default: 1m)"""
    place = option("--no-place", action="store_false")
    """place nothing: compare with the newest placement of --session, if there is one"""
    session = option(metavar="FILE.collage")
    """keep profile and placement as two runs, for compare, report and the desktop"""


class ExportOptions(OptionTable):
    """What of a session is written, and as what."""

    session = positional()
    """a .collage file, as `collage place --session` writes"""
    output = option("-o", "--output", metavar="DIR")
    """folder of the compiled artifact"""
    annotated = option(metavar="FILE.onnx")
    """write the model with toolchain, partition, cost and reason in each node's metadata, and print
    the session option with which ONNX Runtime keeps the split among devices"""
    operator = option("--onnxruntime", metavar="FILE.onnx")
    """write the artifact (to -o, else to a folder of this file's name beside it) with a library for
    ONNX Runtime's register_custom_ops_library, and here a model of one operator, which runs the
    artifact in an ordinary InferenceSession"""
    run = option()
    """id, name or number of the run (default: last), where one shape is exported"""
    dim = option(action=AddDimension, type=read.one_size, default=[], metavar="NAME=4")
    """of a session for several shapes: the one in which the dimension has this size; repeatable
    (default: one artifact with an entry for each shape)"""
    nearest = option(action="store_true")
    """with several shapes: pad inputs to the next larger one, where that is harmless"""


class RunArtifactOptions(OptionTable):
    """The artifact that is run, and what is found out."""

    artifact = positional(metavar="DIR")
    """folder that place or export wrote"""
    benchmark = option(action="store_true")
    """time it too"""
    fail_if_slower = option(type=read.share, metavar="5%%")
    """time it, in up to three processes; status 1 where it is slower in all of them, by more than
    this, than when it was exported, 2 where that was on another machine"""
    trace = option(metavar="FILE.json")
    """also write a run in Chrome's trace format, for Perfetto: a track for each toolchain, an arrow
    for each hand-over"""


class CheckOptions(OptionTable):
    """What is compared, and what is allowed."""

    model = positional()
    """an .onnx file, which is placed; or the folder of an artifact, taken as it is"""
    against = option(required=True, metavar="BASELINE")
    """the folder of an artifact, or a .collage file, whose newest placement is built again"""
    max_slower = option(type=read.share, default=MAX_SLOWER, metavar="3%%")
    """by what share it may be slower (default: 3%%)"""
    max_error = option(type=read.relative_error, metavar="REL")
    """largest error of its outputs, max|y-r| / max|r| (default: the artifact's tolerance)"""
    max_memory = option(type=read.size, metavar="500M")
    """what loading it may add to a process's resident memory (default: anything)"""
    budget = option(type=read.duration, default=CHECK_BUDGET_S, metavar="TIME")
    """time for placing an .onnx file (default: 2m)"""
    junit = option(metavar="FILE")
    """also write a JUnit file, for CI systems"""
    markdown = option(metavar="FILE")
    """also write what is printed to a file"""


class ReportOptions(OptionTable):
    """The file, whose name says the format."""

    output = option("-o", "--output", required=True, metavar="FILE")
    """ends in .html, .md, .csv (candidates), .shapes.csv, .json, .explorer.json (costs of nodes for
    Model Explorer), .svg or .graphml"""
    run = option()
    """id, name or number of the run (default: last)"""


class SearchOptions(OptionTable):
    """The problem, and what is asked of it."""

    problem = positional(nargs="?", metavar="PROBLEM.json")
    """nodes, candidates with costs, pins, transitions; - reads standard input"""
    time_limit = option(type=read.duration, default=ANSWER_S, metavar="TIME")
    """time for the answer (default: 60s); where it is too short for the best placement, the answer
    says how far from it the placement can be"""
    k_best = option(type=read.positive, metavar="N")
    """list the N best placements too, which may take as long again"""
    check = option(metavar="PLACEMENT")
    """do not search: say whether this is a placement that keeps to pins and limits, and what it
    costs; a JSON file (an answer, or a list of candidates by id or by nodes and toolchain), or ids
    separated by commas"""


class StoreExportOptions(OptionTable):
    """The file that is written."""

    file = positional()
    """file to write, one JSON document a line"""


class StoreImportOptions(OptionTable):
    """The file that is read."""

    file = positional()
    """file that `collage store export` wrote"""


class FarmServeOptions(OptionTable):
    """Where a farm's scheduler listens."""

    host = option()
    """address to listen on (default: one that others can reach)"""
    port = option(type=int, default=FARM_PORT)
    """port to listen on (default: 8786)"""


class FarmJoinOptions(OptionTable):
    """The farm that is joined."""

    address = positional()
    """the farm's, such as tls://HOST:8786"""
    certificate = option(metavar="FILE")
    """the farm's certificate; - reads it from standard input and keeps it (default: the one that
    this user has)"""
    name = option()
    """what the farm calls this machine (default: its host name)"""
