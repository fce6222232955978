"""``collage``: reads the arguments, calls the service in process, prints what it answers.

Progress goes to standard error, results to standard output. Exit status: 0 done, 1 the work
failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from collage_engine import __version__
from collage_engine.cli.options import add_run_options, duration
from collage_engine.records.errors import CollageError

PLACE_EXAMPLES = """\
examples:
  collage place model.onnx -o out
  collage place model.onnx -o out --toolchains tvm,onnxruntime --budget 2m
  collage place model.onnx -o out --pin 'conv1*=onednn' --pin 'layer4*=!tvm'
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="collage",
        description="Find out which toolchain should run which part of a model, by measuring.",
    )
    parser.add_argument("--version", action="version", version=f"collage {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    place = commands.add_parser(
        "place", help="measure, search, confirm and export a placement",
        formatter_class=argparse.RawDescriptionHelpFormatter, epilog=PLACE_EXAMPLES,
    )  # fmt: skip
    place.add_argument("model", help="the model, an .onnx file")
    place.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="folder of the compiled artifact"
    )
    add_run_options(place)
    place.add_argument(
        "--budget", type=duration, default=600.0, metavar="TIME",
        help="time for measuring (default: 10m); what it leaves unmeasured is unknown",
    )  # fmt: skip
    place.add_argument(
        "--tune-budget", type=duration, default=0.0, metavar="TIME",
        help="time for tuning TVM's kernels during the search (default: none)",
    )  # fmt: skip
    place.add_argument(
        "--refine", type=duration, default=0.0, metavar="TIME",
        help="time for improving the best placements on end-to-end measurements (default: none)",
    )  # fmt: skip
    place.add_argument("--inputs", metavar="FILE.npz", help="representative inputs, by name")
    place.add_argument(
        "--tolerance", type=float, metavar="REL", help="largest max_rel_error of the whole model"
    )
    place.add_argument(
        "--pin", action="append", default=[], metavar="'GLOB[,GLOB]=WHAT'",
        help="WHAT: NAME, !NAME, exactly[:NAME], together, @DEVICE; repeatable",
    )  # fmt: skip
    place.add_argument(
        "--placement", action="append", metavar="FILE",
        help="a placement of your own (JSON: node name → toolchain), measured as a baseline",
    )  # fmt: skip
    place.add_argument("--session", metavar="FILE", help="keep everything in this .collage file")
    place.add_argument("--json", action="store_true", help="print one JSON document")

    toolchains = commands.add_parser("toolchains", help="what is on this machine, what is missing")
    toolchains.add_argument("--json", action="store_true")

    candidates = commands.add_parser("candidates", help="list a model's candidate partitions")
    candidates.add_argument("model")
    add_run_options(candidates)
    candidates.add_argument("--json", action="store_true")

    explain = commands.add_parser("explain", help="why a node runs where it does")
    explain.add_argument("session")
    explain.add_argument("node", help="operator number, or ONNX node name")
    explain.add_argument("--json", action="store_true")

    compare = commands.add_parser("compare", help="two runs of a session side by side")
    compare.add_argument("session")
    compare.add_argument("run", help="id or name; `last` is the newest")
    compare.add_argument("other")
    compare.add_argument("--json", action="store_true")

    export = commands.add_parser("export", help="write a session's placement as an artifact")
    export.add_argument("session")
    export.add_argument("-o", "--output", required=True, metavar="DIR")
    export.add_argument("--run", default="last", help="id or name of the run (default: last)")

    run = commands.add_parser("run", help="run an artifact and check it against its sample")
    run.add_argument("artifact", metavar="DIR")
    run.add_argument("--benchmark", action="store_true", help="time it too")
    run.add_argument("--json", action="store_true")

    report = commands.add_parser("report", help="write a report of a session")
    report.add_argument("session")
    report.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="ends in .html, .csv, .json or .svg"
    )
    report.add_argument("--run", help="id or name of the run (default: last)")

    search = commands.add_parser("search", help="solve a placement problem given as JSON")
    search.add_argument("problem", metavar="PROBLEM.json")
    search.add_argument("--json", action="store_true")

    store = commands.add_parser("store", help="the machine's measurements")
    actions = store.add_subparsers(dest="action", metavar="ACTION", required=True)
    info = actions.add_parser("info", help="where it is and what it holds")
    info.add_argument("--json", action="store_true")
    actions.add_parser("export", help="write all measurements to a file").add_argument("file")
    actions.add_parser("import", help="take measurements from a file").add_argument("file")
    actions.add_parser("clear", help="forget every measurement")

    commands.add_parser("serve", help="speak JSON-RPC on standard input and output")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit status."""
    options = build_parser().parse_args(arguments)
    # Imported here so that `collage --help` and usage errors come at once.
    from collage_engine.cli import commands

    try:
        return commands.dispatch(options)
    except CollageError as error:
        return commands.report_error(error, options)
    except KeyboardInterrupt:
        print("collage: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output is gone (`| head`); nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
