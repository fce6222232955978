"""Defines the arguments of every command."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, NoReturn

from collage_engine.cli.options import (
    add_others_option,
    add_run_options,
    add_setting,
    add_settings,
    argument,
    dimension,
    duration,
    one_size,
    positive,
    share,
    size,
)
from collage_engine.records.versions import __version__
from collage_engine.support.text import printable
from collage_engine.support.time_limits import ANSWER_S, parse_duration

Commands = Any
"""What ``add_subparsers`` returns; argparse keeps the type to itself."""


FARM_PORT = 8786
"""Port of a farm's scheduler where none is named: the default of ``dask scheduler --port``."""

EXAMPLES = """\
examples:
  collage place model.onnx -o out        the whole way, from a model to a compiled module
  collage run out --benchmark            run that module, check it and time it
  collage COMMAND --help                 what a command takes
"""

MAX_SLOWER = 0.03
"""By what share ``collage check`` lets a model be slower by default; the race drops who
is slower by as much."""

CHECK_BUDGET_S = 120.0
"""Seconds for placing a model that is checked. Of four models two got a placement that is 6 and
20 % faster in 120 s than in 30 (``tests/benchmarks/RESULTS.md``, "Budgets")."""

CHECK_EXAMPLES = """\
examples:
  collage check model.onnx --against baseline.collage --max-slower 3% --junit check.xml
  collage check out --against released --max-error 1e-3 --max-memory 500M
exit status: 0 nothing is worse than allowed (or a tie), 1 something is, 2 it could not be compared
"""


class _Command(argparse.ArgumentParser):
    """A parser that says in a line what is wrong; all its options would bury that."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self.add_argument(
            "-v",
            "--verbose",
            action="count",
            default=argparse.SUPPRESS,
            help="show on standard error what happens; -vv shows more",
        )

    def parse_known_args(self, *given: Any) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        """Refuse what the command does not know by the command's own help."""
        options, unknown = super().parse_known_args(*given)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        wrong = printable(message.removeprefix("argument "))
        self.exit(2, f"{self.prog}: {wrong} ({self.prog} --help says what it takes)\n")


class _PrintSchemas(argparse.Action):
    """Prints the JSON schemas of a command's documents, whatever else is given, and ends it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from collage_engine.cli.output import print_json
        from collage_engine.cli.schemas import schemas

        print_json(schemas(self.const))
        parser.exit()


def _add_json(parser: argparse.ArgumentParser, command: str, default: Any = False) -> None:
    about = "print one JSON document instead"
    parser.add_argument("--json", action="store_true", default=default, help=about)
    parser.add_argument(
        "--schema",
        action=_PrintSchemas,
        nargs=0,
        const=command,
        help="print the JSON schemas of these documents, by their names, and do nothing else",
    )


def _add_session(parser: argparse.ArgumentParser, every: str = "the first one") -> None:
    parser.add_argument("session", help="a .collage file, as `collage place --session` writes")
    parser.add_argument(
        "--dim",
        type=one_size,
        action="append",
        default=[],
        metavar="NAME=4",
        help=f"the shape in which the dimension has this size; repeatable (default: {every})",
    )


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Command(
        prog="collage",
        epilog=EXAMPLES,
        description="Find out which toolchain should run which part of a model, by measuring.",
    )
    parser.add_argument("--version", action="version", version=f"collage {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_place_command(commands)
    _add_model_commands(commands)
    _add_session_commands(commands)
    _add_artifact_commands(commands)
    _add_machine_commands(commands)
    return parser


def _add_place_command(commands: Commands) -> None:
    """Add the command that places a model."""
    parser = commands.add_parser("place", help="measure, search, confirm and export a placement")
    parser.add_argument("model", nargs="+", help="an .onnx file; with --farm also several")
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="folder of the artifact, or of several"
    )
    add_run_options(parser)
    farm = parser.add_argument_group("where")
    farm.add_argument("--farm", default="", metavar="ADDRESS", help="a farm: tls://HOST:8786")
    farm.add_argument(
        "--kind",
        default="",
        metavar="NAME",
        help="only on the farm's machines of this kind, as `collage farm join` prints it",
    )
    shapes = parser.add_argument_group("which shapes")
    shapes.add_argument(
        "--dim",
        type=dimension,
        action="append",
        default=[],
        metavar="NAME=1,4,16",
        help="sizes of a dimension that the model names; repeatable: all combinations are placed, "
        "for one artifact",
    )
    shapes.add_argument(
        "--shapes",
        dest="shapes_file",
        metavar="FILE",
        help="a JSON list of combinations: dimension to size, or input to list of sizes",
    )
    shapes.add_argument(
        "--from-calls",
        dest="calls",
        metavar="FILE",
        help="place the shapes that took most of the time of a program's calls, which "
        "COLLAGE_RECORD wrote to this file (python -m collage_engine.patch)",
    )
    add_others_option(shapes)
    thoroughness = add_settings(
        parser, "how long, and how thoroughly", "budget_s", "confirmation", "in_place"
    )
    time_or_none = argument(partial(parse_duration, or_none=True))
    add_setting(thoroughness, "tune_budget_s", type=time_or_none)
    settings = add_settings(parser, "what counts")
    _add_inputs(settings)
    for field in ("unchecked", "strict_nan", "tolerance", "objective", "strict"):
        add_setting(settings, field)
    settings.add_argument(
        "--placement",
        action="append",
        metavar="FILE",
        help="also time a placement of your own (JSON: node name → toolchain)",
    )
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="'GLOB[,GLOB]=WHAT'",
        help="these nodes: on a toolchain (NAME), never on it (!NAME), as one partition by "
        "themselves (exactly, exactly:NAME), in one (together), on a device (@DEVICE); a name as "
        "it stands or in double quotes means that node alone; repeatable",
    )
    add_settings(
        parser,
        "what the artifact may hold",
        "allow_runtimes",
        "max_runtimes",
        "max_artifact_bytes",
        "max_memory_bytes",
        "licences",
    )
    parser.add_argument("--session", metavar="FILE", help="keep everything in this .collage file")
    _add_json(parser, "place")


def _add_inputs(settings: argparse._ArgumentGroup) -> None:
    settings.add_argument(
        "--inputs",
        action="append",
        metavar="FILE|DIR",
        help="inputs instead of random ones: .npz, .npy, .pb, or a folder of these or of ONNX test "
        "data; repeatable, each time a sample: all are checked, the first is timed",
    )


def _add_model_commands(commands: Commands) -> None:
    """Add the commands that look at a model."""
    candidates = commands.add_parser("candidates", help="list a model's candidate partitions")
    candidates.add_argument("model", help="an .onnx file")
    add_run_options(candidates)
    _add_json(candidates, "candidates")

    diagnose = commands.add_parser(
        "diagnose", help="what a runtime makes of a model, and what a placement would gain"
    )
    diagnose.add_argument("model", help="an .onnx file")
    diagnose.add_argument(
        "--runtime",
        default="",
        metavar="NAME",
        help="run the model in it as you do, with its own profiling: onnxruntime or openvino",
    )
    diagnose.add_argument(
        "--profile",
        default="",
        metavar="FILE",
        help="read what ONNX Runtime, benchmark_app or trtexec wrote instead",
    )
    add_run_options(diagnose)
    _add_inputs(add_settings(diagnose, "what counts"))
    add_setting(
        diagnose,
        "budget_s",
        default=60.0,
        help="time of the whole command, in which the model is also placed (default: 1m)",
    )
    diagnose.add_argument(
        "--no-place",
        dest="place",
        action="store_false",
        help="compare with the newest placement of --session, if there is one",
    )
    diagnose.add_argument(
        "--session", metavar="FILE", help="keep profile and placement as two runs in this file"
    )
    _add_json(diagnose, "diagnose")


def _add_run_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run", default="", metavar="N", help="id, name or number of the run (default: the newest)"
    )


def _add_session_commands(commands: Commands) -> None:
    """Add the commands about a session's file."""
    explain = commands.add_parser("explain", help="why a node runs where it does")
    _add_session(explain)
    explain.add_argument("node", help="operator number, or ONNX node name")
    _add_run_choice(explain)
    _add_json(explain, "explain")

    compare = commands.add_parser("compare", help="two runs of a session side by side")
    _add_session(compare)
    compare.add_argument(
        "run", help="id, name or number of a run, `last`, or a profile as of `collage diagnose`"
    )
    compare.add_argument("other", help="the run or the profile to compare with it")
    _add_json(compare, "compare")

    export = commands.add_parser("export", help="write a session's placement as an artifact")
    _add_session(export, "one artifact with an entry for each shape")
    export.add_argument("-o", "--output", metavar="DIR", help="folder of the compiled artifact")
    export.add_argument(
        "--onnxruntime",
        dest="operator",
        metavar="FILE.onnx",
        help="write a model of one operator, with which ONNX Runtime runs the artifact (in -o, or "
        "in a folder of this file's name)",
    )
    _add_run_choice(export)
    add_others_option(export)

    report = commands.add_parser("report", help="write a report of a session")
    _add_session(report)
    report.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="ends in .html, .csv (candidates), .shapes.csv, .json, .explorer.json (costs of "
        "nodes for Model Explorer), .trace.json (for Perfetto), .svg, .timeline.svg or .graphml",
    )
    _add_run_choice(report)


def _add_artifact_commands(commands: Commands) -> None:
    """Add the commands about artifacts."""
    run = commands.add_parser("run", help="run an artifact and check it against its sample")
    run.add_argument("artifact", metavar="DIR", help="folder that place or export wrote")
    run.add_argument("--benchmark", action="store_true", help="time it too")
    run.add_argument(
        "--trace",
        metavar="FILE.json",
        help="also write a trace, for Perfetto; of an artifact for several shapes, name the folder "
        "of one of them as DIR",
    )
    _add_json(run, "run")

    check = commands.add_parser(
        "check",
        help="a gate for CI: is a model slower, less exact or larger than a baseline?",
        epilog=CHECK_EXAMPLES,
    )
    check.add_argument("model", help="an .onnx file, which is placed, or the folder of an artifact")
    check.add_argument(
        "--against",
        required=True,
        metavar="BASELINE",
        help="the folder of an artifact, or a .collage file, whose newest placement is built again",
    )
    check.add_argument(
        "--max-slower",
        type=share,
        default=MAX_SLOWER,
        metavar="3%",
        help=f"by what share it may be slower (default: {MAX_SLOWER * 100:g}%%)",
    )
    check.add_argument(
        "--max-error",
        type=float,
        metavar="REL",
        help="largest error of its outputs, max|y-r| / max|r| (default: the artifact's tolerance)",
    )
    check.add_argument(
        "--max-memory",
        type=size,
        metavar="500M",
        help="what loading it may add to a process's resident memory (default: anything)",
    )
    check.add_argument(
        "--budget",
        type=duration,
        default=CHECK_BUDGET_S,
        metavar="TIME",
        help=f"time for placing an .onnx file (default: {CHECK_BUDGET_S / 60:g}m)",
    )
    check.add_argument("--junit", metavar="FILE", help="also write a JUnit file, for CI systems")
    check.add_argument("--markdown", metavar="FILE", help="also write what is printed to a file")
    _add_json(check, "check")


def _add_machine_commands(commands: Commands) -> None:
    """Add the commands about this machine and others, and what programs ask."""
    search = commands.add_parser("search", help="solve a placement problem given as JSON")
    search.add_argument("problem", metavar="PROBLEM.json", help="- reads standard input")
    search.add_argument(
        "--time-limit",
        type=duration,
        default=ANSWER_S,
        metavar="TIME",
        help=f"time for the answer, which has a gap where that is short (default: {ANSWER_S:g}s)",
    )
    search.add_argument("--k-best", type=positive, metavar="N", help="list the N best placements")
    _add_json(search, "search")

    toolchains = commands.add_parser(
        "toolchains", help="what is on this machine, what is missing; write and check one"
    )
    _add_json(toolchains, "toolchains")
    actions = toolchains.add_subparsers(dest="action", metavar="[ACTION]")
    check = actions.add_parser("check", help="whether one keeps what the engine expects of it")
    check.add_argument("names", nargs="*", metavar="NAME", help="the toolchains")
    check.add_argument("--all", action="store_true", help="check every toolchain")
    _add_json(check, "toolchains", argparse.SUPPRESS)  # --json may stand before the action, too
    new = actions.add_parser("new", help="write a package with one in Python alone")
    new.add_argument("name", metavar="NAME", help="what users shall call it")

    store = commands.add_parser("store", help="the machine's measurements and compiled kernels")
    actions = store.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_json(actions.add_parser("info", help="where it is and what it holds"), "store")
    writes = actions.add_parser("export", help="write all measurements to a file, as JSON lines")
    reads = actions.add_parser("import", help="take measurements from a file of `export`")
    for action in (writes, reads):
        action.add_argument("file")
    actions.add_parser("clear", help="forget every measurement, and remove the compiled kernels")

    farm = commands.add_parser("farm", help="place models on several machines")
    actions = farm.add_subparsers(dest="action", metavar="ACTION", required=True)
    serve = actions.add_parser("serve", help="run the scheduler; says how machines join it")
    serve.add_argument("--host", help="address to listen on (default: one that others can reach)")
    serve.add_argument(
        "--port", type=int, default=FARM_PORT, help=f"port to listen on (default: {FARM_PORT})"
    )
    join = actions.add_parser("join", help="make this machine one of a farm's")
    join.add_argument("address", help="the farm's, such as tls://HOST:8786")
    join.add_argument(
        "--certificate",
        metavar="FILE",
        help="the farm's (default: this user's); - takes it from standard input and keeps it",
    )
    join.add_argument("--name", help="what the farm calls this machine (default: its host name)")

    commands.add_parser("serve", help="speak JSON-RPC on standard input and output")
