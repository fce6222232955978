"""The inputs that a run works on, and the tolerance that holds for their outputs."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping

import numpy as np

from collage_engine.lowering.accuracy import TOLERANCES, tolerance
from collage_engine.lowering.rounding import relative_bound, roundings
from collage_engine.lowering.rounding_noise import rounding_noise, widened
from collage_engine.model.importer import ImportedModel
from collage_engine.records.accuracy import RunTolerance
from collage_engine.records.errors import UsageError
from collage_engine.records.numbering import NodeSet
from collage_engine.records.reasons import short_reason
from collage_engine.records.settings import RunSettings


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
    try:
        given = dict(np.load(io.BytesIO(settings.inputs_npz), allow_pickle=False))
    except Exception as error:  # an archive can be broken, encrypted or endless in many ways
        reason = short_reason(error, line="first")
        raise UsageError(f"--inputs holds what is no array of numbers: {reason}") from error
    names = [name for name, _ in model.inputs]
    for name in given:
        if name not in names:
            raise UsageError(
                f"--inputs: the model has no input {name!r}; it has {', '.join(names)}"
            )
    result = {}
    for name, kind in model.inputs:
        if name not in given:
            raise UsageError(f"--inputs: input {name!r} is missing")
        array = given[name]
        if array.shape != kind.shape:
            raise UsageError(
                f"--inputs: {name!r} has shape {list(array.shape)}, the model wants "
                f"{list(kind.shape)}"
            )
        if array.dtype != random[name].dtype:
            raise UsageError(
                f"--inputs: {name!r} is {array.dtype}, the model wants {random[name].dtype}"
            )
        result[name] = array
    return result


def model_tolerance(model: ImportedModel, settings: RunSettings) -> float:
    """Return the default bound on the error of the whole model's outputs, as ``max|y-r| / max|r|``.

    It is the loosest of what the run's precision and the element types of the model allow.
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
    """The bound on the error of every output: the user's, else the default or what noise asks for.

    Args:
        model: The model.
        settings: The run's; a tolerance in them is the user's and holds for every output.
        inputs: The run's inputs, on which the rounding noise is measured.
        stopped: Whether the user stopped the run.

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
