"""The inputs that a run works on, and the tolerance that holds for their outputs."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Mapping
from typing import IO

import numpy as np

from collage_engine.lowering.accuracy import TOLERANCES, tolerance
from collage_engine.lowering.rounding import relative_bound, roundings
from collage_engine.lowering.rounding_noise import rounding_noise, widened
from collage_engine.model.importer import ImportedModel
from collage_engine.model.texts import TEXT_TYPE, encoded
from collage_engine.records.accuracy import RunTolerance
from collage_engine.records.errors import UsageError
from collage_engine.records.numbering import NodeSet
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


def model_tolerance(model: ImportedModel, settings: RunSettings) -> float:
    """Return the default bound on the error of the model's outputs, as ``max|y-r| / max|r|``.

    It is the loosest of what the run's precision, the element types of the model and roundings to 8
    bits allow.

    Args:
        model: The model.
        settings: The run's settings.
    """
    kinds = {kind.dtype for node in model.graph.nodes for kind in node.types} - {"float64"}
    bound = max([tolerance(settings.precision), *(TOLERANCES[k] for k in kinds if k in TOLERANCES)])
    everything = NodeSet((1 << len(model.graph.nodes)) - 1)
    depth = max(roundings(model.graph, everything).values(), default=0)
    return max(bound, relative_bound(depth)) if depth else bound


def run_tolerance(
    model: ImportedModel,
    settings: RunSettings,
    inputs: Mapping[str, np.ndarray],
    stopped: Callable[[], bool] = lambda: False,
) -> RunTolerance:
    """Return the bound on the error of every output.

    It is the user's; where there is none, the default, or a multiple of the rounding noise where
    that is more.

    Args:
        model: The model.
        settings: The run's settings; a tolerance in them is the user's and holds for every output.
        inputs: The run's inputs, on which the rounding noise is measured.
        stopped: Tells whether the user stopped the run.

    Raises:
        Cancelled: The user stopped the run.
    """
    default = model_tolerance(model, settings)
    asked = settings.tolerance or default
    found = rounding_noise(model.onnx, inputs, default, stopped=stopped) or []
    names = [name for name, _ in model.outputs]
    noise = {
        name: moved
        for name, moved in zip(names, found, strict=False)
        if math.isfinite(moved) and widened(asked, moved) > asked
    }
    if settings.tolerance:
        return RunTolerance(value=asked, source="user", default=default, noise=noise)
    if not noise:
        return RunTolerance(value=default, source="precision", default=default)
    by_output = {name: widened(default, noise.get(name, 0.0)) for name in names}
    return RunTolerance(
        value=max(by_output.values()),
        source="rounding",
        default=default,
        noise=noise,
        by_output=by_output,
    )
