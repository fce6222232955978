"""Reads what the user wrote: durations, shapes, files."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from collage_engine.records.precision import LONG
from collage_engine.records.settings import RunSettings, option_table
from collage_engine.records.shapes import (
    MOST_ELEMENTS,
    ShapeChoice,
    combined,
    listed,
    named_sizes,
    parse_shape,
)
from collage_engine.service.input_archive import file_bytes, input_archive
from collage_engine.support.errors import InvalidValue, UsageError
from collage_engine.support.time_limits import parse_duration
from collage_engine.support.typed import decode

T = TypeVar("T")


def argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return a reader of an option's value, whose sentence on a wrong one argparse shows."""

    def checked(text: str) -> T:
        try:
            return read(text)
        except InvalidValue as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


duration = argument(parse_duration)
shape = argument(parse_shape)


def names(text: str) -> tuple[str, ...]:
    """Split ``a,b,c`` into ("a", "b", "c")."""
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise argparse.ArgumentTypeError("name at least one")
    return parts


def positive(text: str) -> int:
    """Read a positive whole number."""
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def size(text: str) -> int:
    """Read bytes: ``200M``, ``80000000``; K, M, G are powers of ten, Ki, Mi, Gi of two."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmg]?)(i?)b?\s*", text.lower())
    if not match or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 200M or 1.5G")
    step = 1024 if match[3] else 1000
    return int(float(match[1]) * step ** " kmg".index(match[2] or " "))


def share(text: str) -> float:
    """Return the share that ``3%`` or ``0.03`` means: above 0, below 1."""
    number = text.removesuffix("%")
    value = float(number) / (100 if number != text else 1)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: write 3% or 0.03")
    return value


def dimension(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``batch=1,4,16``: return the name and the sizes."""
    name, values = argument(named_sizes)(text)
    if max(values) > MOST_ELEMENTS:
        raise argparse.ArgumentTypeError(f"{text!r} is larger than any memory")
    if len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(f"{text!r} names a size twice")
    return name, values


def one_size(text: str) -> tuple[str, int]:
    """Read ``batch=4``: return the name and the size."""
    name, sizes = dimension(text)
    if len(sizes) > 1:
        raise argparse.ArgumentTypeError(f"{text!r} names several sizes: write NAME=4")
    return name, sizes[0]


def _by_name(option: str, given: Sequence[tuple[str, T]]) -> dict[str, T]:
    """Return what was given by name.

    Raises:
        UsageError: Something has two values.
    """
    by_name = dict(given)
    for name, value in given:
        if by_name[name] != value:
            raise UsageError(f"{option} has two different values for {name!r}")
    return by_name


def add_others_option(parser: argparse._ActionsContainer) -> None:
    """Add the option of artifacts for several shapes."""
    parser.add_argument(
        "--others",
        action="store_true",
        help="the artifact takes any other shape, too: it runs the model's own file then",
    )


def _fixed_shapes(options: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """Return sizes by input; inputs that are to keep those of their values have none."""
    kept = dict.fromkeys(getattr(options, "keep_inputs", ()), ())
    return kept | _by_name("--shape", options.shape)


def shape_choices(options: argparse.Namespace) -> tuple[ShapeChoice, ...]:
    """Return the shapes that the user asked for; none without ``--dim`` and ``--shapes``.

    Raises:
        UsageError: The file is no list of shapes, or both options are given.
    """
    fixed = _fixed_shapes(options)
    if options.shapes_file is None:
        choices = combined(_by_name("--dim", options.dim), fixed) if options.dim else ()
    elif options.dim:
        raise UsageError("--dim and --shapes both say which shapes: give one of them")
    else:
        option = f"--shapes {options.shapes_file}"
        try:
            data = decode(file_bytes("--shapes", options.shapes_file))
        except msgspec.DecodeError as error:
            raise UsageError(f"{option} is no JSON: {error}") from error
        choices = tuple(
            msgspec.structs.replace(each, shapes={**fixed, **each.shapes})
            for each in listed(data, option)
        )
    if len(choices) > 1 and getattr(options, "objective", "") == "throughput":
        raise UsageError(
            "--objective throughput is for one shape at a time: each shape would choose its own "
            "number of instances, and an artifact has one"
        )
    if options.calls and choices:
        raise UsageError("--from-calls says which shapes: leave out --dim and --shapes")
    if options.others and not choices and not options.calls:
        raise UsageError("--others: name the shapes to place with --dim, --shapes or --from-calls")
    return choices


_READERS: dict[str | None, Callable[[str], object]] = {
    "A,B,…": names,
    "MIT,BSD,…": names,
    "N": positive,
    "TIME": duration,
    "200M": size,
    "500M": size,
    "REL": float,
    "NAME": str,
}
"""How a setting's value is read, by what it looks like."""


def add_settings(
    parser: argparse.ArgumentParser, title: str, *fields: str
) -> argparse._ArgumentGroup:
    """Add a group of options that are fields of ``RunSettings``: what is not given is not set.

    Args:
        parser: The command.
        title: The group's title.
        fields: The fields.
    """
    group = parser.add_argument_group(title, argument_default=argparse.SUPPRESS)
    for field in fields:
        add_setting(group, field)
    return group


def add_setting(group: argparse._ActionsContainer, name: str, **more: Any) -> None:
    """Add the option of one field of ``RunSettings``, as the record declares it.

    Args:
        group: Where it is added.
        name: The field.
        more: What ``add_argument`` is given otherwise than the declaration says.
    """
    kind, option, text = option_table()[name]
    flag = option.flag or f"--{name.replace('_', '-')}"
    given: dict[str, Any] = {"dest": name, "help": text[0].lower() + text[1:].replace("%", "%%")}
    if flag.startswith("--no-"):
        given |= {"action": "store_false", "help": f"do not {given['help']}"}
    elif kind is bool:
        given["action"] = "store_true"
    elif get_origin(kind) is Literal:
        given["choices"] = get_args(kind)
    else:
        given |= {"metavar": option.metavar, "type": _READERS[option.metavar]}
    group.add_argument(flag, **given | more)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``place``, ``candidates`` and ``diagnose`` share."""
    group = add_settings(parser, "what to use", "toolchains", "target", "threads")
    group.add_argument(
        "--shape",
        type=shape,
        action="append",
        default=[],
        metavar="NAME=1,3,224,224",
        help="sizes of an input whose shape the model leaves open; repeatable",
    )
    group.add_argument(
        "--keep-inputs",
        type=names,
        action="extend",
        metavar="A,B,…",
        help="inputs that stay inputs although the file holds values for them; repeatable",
    )
    add_setting(group, "precision", choices=("float32", "tf32", "fp16", "bf16", "int8"))


def settings_from(options: argparse.Namespace) -> RunSettings:
    """Return the run's settings; reads the files the options name. Raises UsageError."""
    from collage_engine.machine.cuda import choose_target
    from collage_engine.toolchains.registry import check_names

    given = {
        name: value
        for name, value in vars(options).items()
        if name in RunSettings.__struct_fields__
    }
    for field in ("toolchains", "allow_runtimes"):
        given[field] = tuple(name.lower() for name in given.get(field, ()))
    if "precision" in given:
        given["precision"] = LONG.get(given["precision"], given["precision"])
    # A wrong name is found before any work.
    choose_target(given.get("target", "cpu"))
    check_names(RunSettings(**given))
    return RunSettings(
        **given,
        shapes=_fixed_shapes(options),
        inputs_npz=input_archive(getattr(options, "inputs", ())),
        placements=tuple(_placement(path) for path in getattr(options, "placement", ())),
    )


def _placement(path: str) -> dict[str, str]:
    """Read ``--placement FILE``.

    The file holds a JSON object ONNX node name → toolchain.
    """
    try:
        return decode(file_bytes("--placement", path), dict[str, str])
    except msgspec.DecodeError as error:
        raise UsageError(
            f"--placement {path}: expected a JSON object of ONNX node name → toolchain: {error}"
        ) from error
