"""Reads what the user wrote: durations, shapes, files."""

from __future__ import annotations

import argparse
import json
import math
import re
from typing import Any

import msgspec

from collage_engine.records.durations import parse_duration
from collage_engine.records.errors import InvalidValue, UsageError
from collage_engine.records.files import read_file
from collage_engine.records.precision import LONG
from collage_engine.records.reasons import short_reason
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import MOST_ELEMENTS, ShapeChoice, combined, listed
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.typed import convert
from collage_engine.service.input_archive import MOST_FILE_BYTES, file_bytes, input_archive


def duration(text: str, *, or_none: bool = False) -> float:
    """Return the seconds that ``90s``, ``10m`` or ``1.5h`` mean; see ``parse_duration``."""
    try:
        return parse_duration(text, or_none=or_none)
    except InvalidValue as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``NAME=1,3,224,224``: return the name and the sizes.

    The tensors of a sequence are ``NAME[0]=2,3`` and so on; ``NAME[]=`` says that it has none.
    """
    name, equals, sizes = text.rpartition("=")
    if name.endswith("[]") and not sizes:
        return name, ()
    parts = re.split(r"[,x]", sizes)
    if not equals or not name or not all(re.fullmatch(r"\s*\d+\s*", part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape: write NAME=1,3,224,224")
    values = tuple(int(part) for part in parts)  # which of them may be 0, the model knows
    if math.prod(values) > MOST_ELEMENTS:
        raise argparse.ArgumentTypeError(f"{text!r} is larger than any memory")
    return name, values


def names(text: str) -> tuple[str, ...]:
    """Split ``a,b,c`` into ("a", "b", "c")."""
    found = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    if not found:
        raise argparse.ArgumentTypeError("name at least one")
    return found


def numbers(text: str) -> tuple[int, ...]:
    """Split ``0,2,3`` into (0, 2, 3)."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(re.fullmatch(r"\d+", part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers: write 0,1")
    return tuple(map(int, parts))


def positive(text: str) -> int:
    """Read a positive whole number."""
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def size(text: str) -> int:
    """Read bytes: ``200M``, ``80000000``; K, M, G are powers of ten, Ki, Mi, Gi of two."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmg]?)(i?)b?\s*", text.lower())
    if not found or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 200M or 1.5G")
    step = 1024 if found[3] else 1000
    return int(float(found[1]) * step ** " kmg".index(found[2] or " "))


def licences(text: str) -> tuple[str, ...]:
    """Read ``Apache-2.0,MIT,BSD``: return the names as they are written."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise argparse.ArgumentTypeError("name at least one licence")
    return found


def positive_number(text: str) -> float:
    """Read a positive, finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return value


def relative_error(text: str) -> float:
    """Return a bound on a relative error: above 0, below 1."""
    value = positive_number(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no bound on a relative error: write 0.01 for 1 %"
        )
    return value


def share(text: str) -> float:
    """Return the share that ``3%`` or ``0.03`` means: above 0, below 1."""
    number = text.removesuffix("%")
    value = positive_number(number.strip()) / (100 if number != text else 1)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: write 3% or 0.03")
    return value


def dimension(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``batch=1,4,16``: return the name and the sizes."""
    name, equals, sizes = text.rpartition("=")
    parts = [part.strip() for part in sizes.split(",")]
    if not equals or not name or not all(re.fullmatch(r"\d+", part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no dimension: write NAME=1,4,16")
    values = tuple(int(part) for part in parts)
    if max(values) > MOST_ELEMENTS:
        raise argparse.ArgumentTypeError(f"{text!r} is larger than any memory")
    if len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(f"{text!r} names a size twice")
    return name.strip(), values


def one_size(text: str) -> tuple[str, int]:
    """Read ``batch=4``: return the name and the size."""
    name, sizes = dimension(text)
    if len(sizes) > 1:
        raise argparse.ArgumentTypeError(f"{text!r} names several sizes: write NAME=4")
    return name, sizes[0]


class _AddDimension(argparse.Action):
    """Gathers ``--dim`` options; one dimension is named once."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        known = getattr(namespace, self.dest)
        name, sizes = values
        if name in dict(known):
            raise argparse.ArgumentError(self, f"the dimension {name!r} is given twice")
        setattr(namespace, self.dest, [*known, (name, sizes)])


def add_dimension_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``place`` that name several shapes."""
    group = parser.add_argument_group("which shapes")
    group.add_argument(
        "--dim",
        type=dimension,
        action=_AddDimension,
        default=[],
        metavar="NAME=1,4,16",
        help="sizes of a dimension that the model names; repeatable, all combinations are placed "
        "and stand in one artifact",
    )
    group.add_argument(
        "--shapes",
        metavar="FILE",
        help="the combinations themselves: a JSON list of objects, dimension to size or input to "
        "list of sizes",
    )
    group.add_argument(
        "--nearest",
        action="store_true",
        help="the artifact pads inputs to the next larger shape that it has, along the dimensions "
        "where the graph proves that this changes no result",
    )


def add_shape_option(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the option that names one of the shapes that a session holds.

    Args:
        parser: The command.
        default: What is meant without the option.
    """
    parser.add_argument(
        "--dim",
        type=one_size,
        action=_AddDimension,
        default=[],
        metavar="NAME=4",
        help="of a session for several shapes: the one in which the dimension has this size; "
        f"repeatable (default: {default})",
    )


def shape_choices(options: argparse.Namespace) -> tuple[ShapeChoice, ...]:
    """Return the shapes that the user asked for; none without ``--dim`` and ``--shapes``.

    Raises:
        UsageError: The file is no list of shapes, or both options are given.
    """
    fixed = dict(options.shape)
    if options.shapes is None:
        found = combined(dict(options.dim), fixed) if options.dim else ()
    elif options.dim:
        raise UsageError("--dim and --shapes both say which shapes: give one of them")
    else:
        option = f"--shapes {options.shapes}"
        try:
            data = json.loads(file_bytes("--shapes", options.shapes).decode())
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{option} is no JSON: {error}") from error
        found = tuple(
            msgspec.structs.replace(each, shapes={**fixed, **each.shapes})
            for each in listed(data, option)
        )
    if len(found) > 1 and options.objective == "throughput":
        raise UsageError(
            "--objective throughput is for one shape at a time: each shape would choose its own "
            "number of instances, and an artifact has one"
        )
    if options.nearest and len(found) < 2:
        raise UsageError("--nearest: name the shapes to choose from with --dim or --shapes")
    return found


class _AddShape(argparse.Action):
    """Gathers ``--shape`` options; one input has one shape."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        known = dict(getattr(namespace, self.dest))
        name, sizes = values
        if known.get(name, sizes) != sizes:
            raise argparse.ArgumentError(self, f"two different shapes for the input {name!r}")
        setattr(namespace, self.dest, [*known.items(), (name, sizes)])


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``place`` and ``candidates`` share."""
    group = parser.add_argument_group("what to use")
    group.add_argument(
        "--toolchains",
        type=names,
        default=(),
        metavar="A,B,…",
        help="toolchains to use, in order of preference (default: every available one)",
    )
    group.add_argument(
        "--target", default="cpu", metavar="NAME", help="target to place on (default: cpu)"
    )
    group.add_argument(
        "--threads",
        type=positive,
        default=0,
        metavar="N",
        help="threads of every runtime (default: physical cores, or fewer where that is faster)",
    )
    group.add_argument(
        "--shape",
        type=shape,
        action=_AddShape,
        default=[],
        metavar="NAME=1,3,224,224",
        help="sizes of an input whose shape the model leaves open; repeatable",
    )
    group.add_argument(
        "--precision",
        default="float32",
        choices=("float32", "tf32", "fp16", "bf16", "int8"),
        help="lowest precision candidates may compute in: float32 (default); bf16, or with "
        "--target cuda tf32 and fp16, where that is faster and the tolerance is kept; int8, which "
        "a model must say itself (QDQ)",
    )


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for what is deployed; each limit gets a verdict with its price."""
    group = parser.add_argument_group("what the artifact may hold")
    group.add_argument(
        "--allow-runtimes",
        type=names,
        default=(),
        metavar="A,B,…",
        help="partitions of these toolchains only; the others are measured for the price",
    )
    group.add_argument(
        "--max-runtimes",
        type=positive,
        default=0,
        metavar="N",
        help="partitions of at most N different toolchains",
    )
    group.add_argument(
        "--max-artifact-size",
        type=size,
        default=0,
        metavar="200M",
        help="weights and runtime libraries together",
    )
    group.add_argument(
        "--max-memory",
        type=size,
        default=0,
        metavar="500M",
        help="resident memory while running, as measured with Python and TVM's runtime in it",
    )
    group.add_argument(
        "--licences",
        type=licences,
        default=(),
        metavar="Apache-2.0,MIT,…",
        help="runtime libraries under these licences only (SPDX; BSD means all BSD ones)",
    )


def settings_from(options: argparse.Namespace) -> RunSettings:
    """Return the run's settings; reads the files the options name. Raises UsageError."""
    from collage_engine.toolchains.registry import all_names

    known = all_names()
    allowed = getattr(options, "allow_runtimes", ())
    for option, names in (("--toolchains", options.toolchains), ("--allow-runtimes", allowed)):
        for name in names:
            if name not in known:
                raise UsageError(
                    f"{option}: there is no toolchain {name!r}; known are {', '.join(known)}"
                )
    placements = tuple(_placement(path) for path in getattr(options, "placement", None) or ())
    return RunSettings(
        toolchains=tuple(options.toolchains),
        target=options.target,
        threads=options.threads,
        budget_s=getattr(options, "budget", 600.0),
        confirmation=getattr(options, "confirm", "full"),
        measure=getattr(options, "measure", "needed"),
        tune_budget_s=getattr(options, "tune_budget", 0.0),
        in_place=getattr(options, "in_place", True),
        shapes=dict(options.shape),
        objective=getattr(options, "objective", "latency"),
        precision=LONG.get(options.precision, options.precision),
        tolerance=getattr(options, "tolerance", None),
        strict=getattr(options, "strict", False),
        inputs_npz=input_archive(getattr(options, "inputs", None) or ()),
        unchecked=getattr(options, "unchecked", False),
        placements=placements,
        allow_runtimes=tuple(allowed),
        max_runtimes=getattr(options, "max_runtimes", 0),
        max_artifact_bytes=getattr(options, "max_artifact_size", 0),
        max_memory_bytes=getattr(options, "max_memory", 0),
        licences=tuple(getattr(options, "licences", ())),
    )


class _PrintedPartition(msgspec.Struct, frozen=True):
    """What ``--placement`` reads of a partition in a printed document."""

    toolchain: str
    onnx_nodes: list[str]
    config: dict[str, str] = {}

    @property
    def instance(self) -> str:
        """Return the id of its toolchain instance."""
        config = tuple(sorted(self.config.items()))
        return ToolchainInstance(toolchain=self.toolchain, config=config).id


class _PrintedPlacement(msgspec.Struct, frozen=True):
    """What ``--placement`` reads of a placement in a printed document."""

    partitions: list[_PrintedPartition]


def _placement(path: str) -> dict[str, str]:
    """Read ``--placement FILE``.

    The file holds a JSON object ONNX node name → toolchain, or a document that
    ``collage place --json`` printed.
    """
    try:
        data = json.loads(read_file(path, MOST_FILE_BYTES).decode())
    except OSError as error:
        raise UsageError(f"--placement {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--placement {path} is no JSON file") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--placement {path} is no JSON: {error}") from error
    try:
        if isinstance(data, dict) and isinstance(data.get("placement"), dict):
            return {
                name: part.instance
                for part in convert(data["placement"], _PrintedPlacement).partitions
                for name in part.onnx_nodes
            }
        by_name: dict[str, str] = convert(data, dict[str, str])
    except msgspec.ValidationError as error:
        raise UsageError(
            f"--placement {path}: expected a JSON object of ONNX node name → toolchain, or what "
            f"collage place --json printed: {short_reason(error)}"
        ) from error
    return by_name
