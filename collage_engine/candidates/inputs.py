"""The inputs that a run works on, and the tolerance that holds for their outputs."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Mapping
from typing import IO, Literal

import numpy as np

from collage_engine.lowering.accuracy import TOLERANCES, is_exact, tolerance
from collage_engine.lowering.rounding import is_quantised, relative_bound, roundings
from collage_engine.lowering.rounding_noise import rounding_noise, widened
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.importer import ImportedModel
from collage_engine.model.texts import TEXT_TYPE, encoded
from collage_engine.records.accuracy import RunTolerance
from collage_engine.records.errors import UsageError
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.reasons import short_reason, shown
from collage_engine.records.settings import RunSettings

ArrayKind = tuple[tuple[int, ...], np.dtype]
"""Shape and element type."""


def representative_inputs(model: ImportedModel, settings: RunSettings) -> dict[str, np.ndarray]:
    """Return the user's own inputs, or random ones from the run's seed.

    Returns:
        One array per model input, by name.

    Raises:
        UsageError: The user's inputs do not fit the model; the message names the input.
    """
    random = model.random_inputs(settings.seed)
    if settings.inputs_npz is None:
        return random
    wanted = {name: (kind.shape, random[name].dtype) for name, kind in model.inputs}
    given = _arrays(settings.inputs_npz, wanted)
    for name in wanted:
        if name not in given:
            raise UsageError(f"--inputs: input {name!r} is missing")
    return {name: given[name] for name in wanted}


def _arrays(content: bytes, wanted: Mapping[str, ArrayKind]) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file; each one's kind is compared before its numbers are read.

    Raises:
        UsageError: A member is no input of the model, of another kind, or not readable.
    """
    found: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name not in wanted:
                    raise UsageError(
                        f"--inputs: the model has no input {shown(name)!r}; it has "
                        f"{', '.join(wanted)}"
                    )
                if name in found:
                    raise UsageError(f"--inputs holds two arrays for the input {name!r}")
                with archive.open(member) as stream:
                    given = _kind_of(stream)
                    is_text = wanted[name][1] == TEXT_TYPE and given[1].kind in "SU"
                    _check_kind(name, (given[0], TEXT_TYPE) if is_text else given, wanted[name])
                with archive.open(member) as stream:
                    found[name] = np.lib.format.read_array(stream, allow_pickle=False)
                if is_text:
                    found[name] = encoded(found[name])
    except UsageError:
        raise
    except Exception as error:  # an archive can be broken, encrypted or endless in many ways
        reason = short_reason(error, line="first")
        raise UsageError(f"--inputs holds what is no array of numbers: {reason}") from error
    return found


def _kind_of(stream: IO[bytes]) -> ArrayKind:
    """Read the shape and the element type from the header of an array."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"version {version[0]}.{version[1]} of the format is for records")
    return shape, dtype


def _check_kind(name: str, given: ArrayKind, wanted: ArrayKind) -> None:
    """Raise ``UsageError`` where an array is not what the model takes."""
    if given[0] != wanted[0]:
        raise UsageError(
            f"--inputs: {name!r} has shape {shown(str(list(given[0])))}, the model wants "
            f"{list(wanted[0])}"
        )
    if given[1] != wanted[1]:
        raise UsageError(
            f"--inputs: {name!r} is {shown(str(given[1]))}, the model wants {wanted[1]}"
        )


def own_tolerances(model: ImportedModel, settings: RunSettings) -> dict[str, float]:
    """Return the default bound on the error of each output, as ``max|y-r| / max|r|``.

    For a float it is the loosest of what the run's precision, the types of the values that it is
    computed from, and roundings to 8 bits on the way to it allow. A value that must be equal has 0.

    Args:
        model: The model.
        settings: The run's settings.
    """
    graph = model.graph
    depths = roundings(graph, NodeSet((1 << len(graph.nodes)) - 1))
    found = {}
    for (name, kind), index in zip(model.outputs, graph.record.outputs, strict=True):
        if is_exact(kind.dtype) and not is_quantised(graph, index):
            found[name] = 0.0
            continue
        before = _computed_from(graph, index)
        kinds = {each.dtype for i in before for each in graph.nodes[i].types} - {"float64"}
        least = tolerance(settings.precision)
        bound = max([least, *(TOLERANCES[k] for k in (*kinds, kind.dtype) if k in TOLERANCES)])
        found[name] = max(bound, relative_bound(depths[index])) if depths[index] else bound
    return found


def _computed_from(graph: DataflowGraph, index: NodeIndex) -> set[NodeIndex]:
    """Return the nodes that a value depends on, and its own."""
    seen, waiting = {index}, [index]
    while waiting:
        new = set(graph.nodes[waiting.pop()].inputs) - seen
        seen |= new
        waiting.extend(new)
    return seen


def run_tolerance(
    model: ImportedModel,
    settings: RunSettings,
    inputs: Mapping[str, np.ndarray],
    stopped: Callable[[], bool] = lambda: False,
) -> RunTolerance:
    """Return the bound on the error of every output.

    It is the user's; where there is none, the default, or a multiple of the rounding noise where
    that is more. What must be equal must be equal whatever the user allows.

    Args:
        model: The model.
        settings: The run's settings; a tolerance in them is the user's and holds for every output
            that may be off at all.
        inputs: The run's inputs, on which the rounding noise is measured.
        stopped: Tells whether the user stopped the run.

    Raises:
        Cancelled: The user stopped the run.
    """
    own = own_tolerances(model, settings)
    default = max(own.values(), default=0.0)
    asked = {name: settings.tolerance or bound if bound else 0.0 for name, bound in own.items()}
    least = min((bound for bound in own.values() if bound), default=None)
    found = rounding_noise(model.onnx, inputs, least, stopped=stopped) if least else None
    noise = {
        name: moved
        for name, moved in zip(own, found or [], strict=False)
        if asked[name] and math.isfinite(moved) and widened(asked[name], moved) > asked[name]
    }
    source: Literal["user", "precision", "rounding"] = "rounding" if noise else "precision"
    if settings.tolerance:
        source, bounds = "user", asked
    else:
        bounds = {name: widened(bound, noise.get(name, 0.0)) for name, bound in own.items()}
    return RunTolerance(
        value=max(bounds.values(), default=0.0),
        source=source,
        default=default,
        noise=noise,
        by_output=bounds if len(set(bounds.values())) > 1 else {},
    )
