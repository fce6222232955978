"""Defines the arguments of every command."""

from __future__ import annotations

import argparse
import difflib
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from collage_engine.cli import option_tables as tables
from collage_engine.cli.option_tables import OptionTable, add_options
from collage_engine.records.text import printable
from collage_engine.records.versions import __version__

Commands = Any
"""What ``add_subparsers`` returns; argparse keeps the type to itself."""


PLACE_EXAMPLES = """\
examples:
  collage place model.onnx -o out
  collage place model.onnx -o out --toolchains NAME,NAME --budget 2m
  collage place model.onnx -o out --dim batch=1,4,16
  collage place model.onnx -o out --pin 'conv1*=onednn' --pin 'layer4*=!tvm'
"""

EXAMPLES = """\
examples:
  collage place model.onnx -o out        the whole way, from a model to a compiled module
  collage run out --benchmark            run that module, check it and time it
  collage COMMAND --help                 what a command takes
"""

CHECK_EXAMPLES = """\
examples:
  collage check model.onnx --against baseline.collage --max-slower 3% --junit check.xml
  collage check out --against released --max-error 1e-3 --max-memory 500M
exit status: 0 nothing is worse than allowed (or a tie), 1 something is, 2 it could not be compared
"""

SEARCH_EXAMPLES = """\
examples:
  collage search problem.json --json > answer.json
  collage search problem.json --check answer.json
  gzip -dc problem.json.gz | collage search - --time-limit 2m --k-best 5
"""


class HelpFormat(argparse.RawDescriptionHelpFormatter):
    """Room for long option names beside their help."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def add_argument(self, action: argparse.Action) -> None:
        """Add an argument to the help and note how wide its name is."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            # argparse forgets that commands are indented once more than options.
            self._action_max_length = max(
                self._action_max_length, *(len(name) + 4 for name in action.choices)
            )


class _Command(argparse.ArgumentParser):
    """A parser that says in a line what is wrong; all its options would bury that."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormat} | options)
        _add_verbose(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Name an option that does not exist, before its value is taken for something else."""
        if self._subparsers is None:  # else what follows a command is for that command's parser
            for text in itertools.takewhile(lambda text: text != "--", args or ()):
                name = text.partition("=")[0]
                known = self._option_string_actions
                if name.startswith("--") and not any(one.startswith(name) for one in known):
                    near = difflib.get_close_matches(name, known, n=1)
                    self.error(
                        " ".join(
                            [f"there is no option {name}", *map("(did you mean {}?)".format, near)]
                        )
                    )
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        wrong = printable(message.removeprefix("argument "))
        self.exit(2, f"{self.prog}: {wrong} ({self.prog} --help says what it takes)\n")


def _add_verbose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=argparse.SUPPRESS,
        help="show on standard error what happens; -vv shows more",
    )


class _PrintSchemas(argparse.Action):
    """Prints the JSON schemas of a command's documents, whatever else is given, and ends it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from collage_engine.cli.output import print_json
        from collage_engine.cli.schemas import schemas

        print_json(schemas(self.const))
        parser.exit()


def _add_json(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument(
        "--schema",
        action=_PrintSchemas,
        nargs=0,
        const=command,
        help="print the JSON schemas of these documents, by their names, and do nothing else",
    )


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Command(
        prog="collage",
        epilog=EXAMPLES,
        description="Find out which toolchain should run which part of a model, by measuring.",
    )
    parser.add_argument("--version", action="version", version=f"collage {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Command
    )
    for name, command in COMMANDS.items():
        _add_command(commands, name, command)
    return parser


class Command(NamedTuple):
    """A command: what it does, its options, the documents that it prints, its own commands."""

    about: str
    options: tuple[type[OptionTable], ...] = ()
    documents: str = ""
    """By what name ``schemas`` knows them; empty: it has no ``--json``."""
    examples: str | None = None
    actions: Mapping[str, Command] = {}


def _add_command(commands: Commands, name: str, command: Command) -> None:
    parser = commands.add_parser(name, help=command.about, epilog=command.examples)
    for table in command.options:
        add_options(parser, table)
    if command.documents:
        _add_json(parser, command.documents)
    if command.actions:
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        for action, inner in command.actions.items():
            _add_command(actions, action, inner)


COMMANDS = {
    "place": Command(
        "measure, search, confirm and export a placement",
        (
            tables.PlaceOptions,
            tables.RunOptions,
            tables.InputOptions,
            tables.ShapesOptions,
            tables.LimitOptions,
        ),
        "place",
        PLACE_EXAMPLES,
    ),
    "toolchains": Command(
        "what is on this machine, what is missing; write and check one of your own",
        (tables.ToolchainsOptions,),
        "toolchains",
    ),
    "candidates": Command(
        "list a model's candidate partitions",
        (tables.ModelOptions, tables.RunOptions),
        "candidates",
    ),
    "explain": Command(
        "why a node runs where it does",
        (tables.SessionOptions, tables.ExplainOptions),
        "explain",
    ),
    "compare": Command(
        "two runs of a session side by side",
        (tables.SessionOptions, tables.CompareOptions),
        "compare",
    ),
    "diagnose": Command(
        "what a runtime makes of a model, and what a placement would gain",
        (tables.ModelOptions, tables.DiagnoseOptions, tables.RunOptions, tables.InputOptions),
        "diagnose",
    ),
    "export": Command(
        "write a session's placement as an artifact, or into its ONNX file",
        (tables.ExportOptions,),
    ),
    "run": Command(
        "run an artifact and check it against its sample", (tables.RunArtifactOptions,), "run"
    ),
    "check": Command(
        "a gate for CI: is a model slower, less exact or larger than a baseline?",
        (tables.CheckOptions,),
        "check",
        CHECK_EXAMPLES,
    ),
    "report": Command("write a report of a session", (tables.SessionOptions, tables.ReportOptions)),
    "search": Command(
        "solve a placement problem given as JSON",
        (tables.SearchOptions,),
        "search",
        SEARCH_EXAMPLES,
    ),
    "store": Command(
        "the machine's measurements",
        actions={
            "info": Command("where it is and what it holds", documents="store"),
            "export": Command("write all measurements to a file", (tables.StoreExportOptions,)),
            "import": Command("take measurements from a file", (tables.StoreImportOptions,)),
            "clear": Command("forget every measurement"),
        },
    ),
    "farm": Command(
        "place models on several machines",
        actions={
            "serve": Command(
                "run the scheduler of a farm; says how machines join it",
                (tables.FarmServeOptions,),
            ),
            "join": Command("make this machine one of a farm's", (tables.FarmJoinOptions,)),
        },
    ),
    "serve": Command("speak JSON-RPC on standard input and output"),
}
"""In the order in which the help lists them."""
