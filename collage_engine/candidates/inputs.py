"""The inputs that a run works on, and the tolerance that holds for their outputs."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from collage_engine.candidates.input_files import Arrays, read_samples, stated_sizes
from collage_engine.lowering.accuracy import (
    counts_values,
    is_exact,
    is_quantised,
    relative_bound,
    roundings,
    share_not_finite,
    tolerance,
    unsettled_share,
)
from collage_engine.lowering.reference import original_outputs, run_by_either
from collage_engine.lowering.rounding_noise import rounding_noise, widened
from collage_engine.machine.loader.run_artifact import error_of
from collage_engine.model.importer import ImportedModel
from collage_engine.model.observed_types import with_outputs
from collage_engine.model.random_inputs import RANGES, edges
from collage_engine.model.values import numpy_type
from collage_engine.model.whole_numbers import is_whole
from collage_engine.records.graph import members
from collage_engine.records.precision import TOLERANCES, RunTolerance
from collage_engine.records.settings import RunSettings
from collage_engine.support.errors import ModelError, UsageError, displayable, short_reason

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSample:
    """Inputs, and what the user's own file computes of them.

    Attributes:
        inputs: The inputs by name.
        truth: The outputs by name.
        not_finite: By output the share of its values that compare nothing, since they are NaN or
            infinite; of a whole number, the share of the floats that it is decided by. Outputs all
            of whose values are finite are left out.
        stated: What the user's test data says of outputs.
    """

    inputs: Mapping[str, np.ndarray]
    truth: Mapping[str, np.ndarray]
    not_finite: Mapping[str, float]
    stated: Mapping[str, np.ndarray] = field(default_factory=dict)


def model_samples(
    model: ImportedModel, settings: RunSettings, further: int = 0
) -> tuple[ModelSample, ...]:
    """Return the inputs on which a run's outputs are checked, with the true outputs.

    Args:
        model: The model.
        settings: The run's settings.
        further: Random samples besides the first one, where the user gives none.

    Returns:
        The user's own samples, all of them; or random ones from the run's seed, each from the first
        range of numbers in which every output is finite (else: the most values are). More follow
        where the model has whole numbers for inputs, or decides something by ties.

    Raises:
        UsageError: The user's inputs do not fit the model; the message names the input.
        ModelError: The model cannot be run.
    """
    given = _given(model, settings)
    if given:
        return tuple(replace(_sample(model, inputs), stated=stated) for inputs, stated in given)
    samples = [_random_sample(model, settings.seed + k) for k in range(1 + further)]
    # Whole numbers are drawn twice; ties, and floats that become whole numbers, have their samples.
    others = edges(model.graph)
    if not further and not others and any(is_whole(kind) for _, kind in model.inputs):
        others = ("normal",)
    for k, numbers in enumerate(others, len(samples)):
        with contextlib.suppress(ModelError):  # it is no sample for the model
            sample = _sample(model, model.random_inputs(settings.seed + k, numbers))
            if sample.not_finite.keys() <= samples[0].not_finite.keys():
                samples.append(sample)
    return tuple(samples)


def representative_inputs(model: ImportedModel, settings: RunSettings) -> dict[str, np.ndarray]:
    """Return the inputs of the first sample, on which a run measures.

    Returns:
        One array per model input, by name.

    Raises:
        UsageError: The user's inputs do not fit the model; the message names the input.
        ModelError: The model cannot be run.
    """
    given = _given(model, settings)
    return given[0][0] if given else dict(_random_sample(model, settings.seed).inputs)


def unchecked(samples: Sequence[ModelSample]) -> dict[str, float]:
    """Return the share of each output's values that compare nothing on any sample.

    Outputs that one sample checks wholly are left out. A share of 1 means that the output is not
    checked at all.
    """
    least: dict[str, float] = {}
    for name in samples[0].not_finite:
        least[name] = min(sample.not_finite.get(name, 0.0) for sample in samples)
    return {name: share for name, share in least.items() if share}


def _random_sample(model: ImportedModel, seed: int) -> ModelSample:
    """Return random inputs from the first range that makes all outputs finite.

    Raises:
        ModelError: The model runs on none; what it says is said of the first.
    """
    best: ModelSample | None = None
    refusal: ModelError | None = None
    for numbers in RANGES:
        try:
            sample = _sample(model, model.random_inputs(seed, numbers))
        except ModelError as error:
            refusal = refusal or error
            continue
        if best is None or sum(sample.not_finite.values()) < sum(best.not_finite.values()):
            best = sample
        if not sample.not_finite:
            break
    if best is None:
        assert refusal is not None
        raise refusal
    return best


def _sample(model: ImportedModel, inputs: Mapping[str, np.ndarray]) -> ModelSample:
    """Run the model on inputs, and find out which of its outputs compare something."""
    truth = original_outputs(model, inputs)
    shares = {name: share_not_finite(array) for name, array in truth.items()}
    deciding = _deciding_floats(model)
    if deciding:
        names = sorted({name for each in deciding.values() for name in each})
        try:
            outputs = dict(
                zip(names, run_by_either(with_outputs(model.onnx, names), inputs), strict=True)
            )
        except Exception as error:  # each evaluator of ONNX has error classes of its own
            _LOG.warning(
                "whether the values behind %s are finite is not known: %s",
                ", ".join(deciding),
                short_reason(error, line="first"),
            )
            outputs = {}
        for output, floats in deciding.items():
            shares[output] = max(
                (share_not_finite(outputs[name]) for name in floats if name in outputs), default=0.0
            )
    return ModelSample(inputs, truth, {name: share for name, share in shares.items() if share})


def _deciding_floats(model: ImportedModel) -> dict[str, set[str]]:
    """Return the ONNX names of the floats that each whole number, boolean or text is made of.

    They are the computed floats from which it follows through values of other types alone: the
    scores of an index, both sides of a comparison.
    """
    graph = model.graph
    names_of_outputs = {name for node in model.onnx.graph.node for name in node.output}
    floats: dict[str, set[str]] = {}
    for (name, kind), index in zip(model.outputs, graph.record.outputs, strict=True):
        if not is_exact(kind.dtype):
            continue
        seen, waiting = {index}, [index]
        while waiting:
            value = graph.values[waiting.pop()]
            if not is_exact(value.type.dtype) and value.onnx_value in names_of_outputs:
                floats.setdefault(name, set()).add(str(value.onnx_value))
                continue
            node = graph.operator_of(value.index)
            read = set() if node is None else set(node.inputs)
            waiting.extend(read - seen)
            seen |= read
    return floats


def _given(model: ImportedModel, settings: RunSettings) -> list[tuple[Arrays, Arrays]]:
    """Return the user's own samples as ``read_samples`` does; none: there are none.

    Raises:
        UsageError: They do not fit the model; the message names the input.
    """
    if settings.inputs_npz is None:
        return []
    expected = {name: (tuple(kind.shape), numpy_type(kind.dtype)) for name, kind in model.inputs}
    for name in stated_sizes(settings.inputs_npz, list(expected)):
        if name in model.defaults:
            raise UsageError(
                f"--inputs: {displayable(name)!r} has a value in the model's file and is a "
                "constant: "
                f"leave it out, or keep it as an input with --keep-inputs {displayable(name)}"
            )
    outputs = {
        name: None if kind.is_open else (tuple(kind.shape), numpy_type(kind.dtype))
        for name, kind in model.outputs
    }
    return read_samples(settings.inputs_npz, expected, outputs)


def stated_errors(samples: Sequence[ModelSample], bounds: Mapping[str, float]) -> dict[str, float]:
    """Return the relative errors of outputs of which the user's test data says something else.

    Args:
        samples: The samples.
        bounds: What the relative error of each output may be.

    Returns:
        By output the largest error that its true values have against the test data; without outputs
        that are within their bounds on every sample.
    """
    worst: dict[str, float] = {}
    for sample in samples:
        for name, stated in sample.stated.items():
            error = error_of(sample.truth[name], stated)[1]
            if not error <= bounds[name]:  # NaN is within no bound
                worst[name] = max(worst.get(name, error), error)
    return worst


def own_tolerances(model: ImportedModel, settings: RunSettings) -> dict[str, float]:
    """Return the default bound on the error of each output, as ``max|y-r| / max|r|``.

    For a float it is the loosest of what the run's precision, the types of the values that it is
    computed from, and roundings to 8 bits on the way to it allow. A value that must be equal has 0.

    Args:
        model: The model.
        settings: The run's settings.
    """
    graph = model.graph
    depths = roundings(graph, graph.everything)
    tolerances = {}
    for (name, kind), index in zip(model.outputs, graph.record.outputs, strict=True):
        if is_exact(kind.dtype) and not is_quantised(graph, index):
            tolerances[name] = 0.0
            continue
        maker = graph.values[index].producer
        before = () if maker is None else (*members(graph.upstream[maker]), maker)
        values = {
            i for each in before for i in (*graph.nodes[each].inputs, *graph.nodes[each].outputs)
        }
        kinds = {graph.values[i].type.dtype for i in values} - {"float64"}
        least = tolerance(settings.precision)
        bound = max([least, *(TOLERANCES[k] for k in (*kinds, kind.dtype) if k in TOLERANCES)])
        tolerances[name] = max(bound, relative_bound(depths[index])) if depths.get(index) else bound
    return tolerances


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
    least = min((bound for bound in own.values() if bound), default=TOLERANCES["float32"])
    noises = rounding_noise(model.onnx, inputs, least, stopped=stopped) or []
    moves = {name: moved for name, moved in zip(own, noises, strict=False) if math.isfinite(moved)}
    counted = {
        name: 0 if kind.any_rank else kind.elements
        for name, kind in model.outputs
        if counts_values(numpy_type(kind.dtype))
    }
    bounds = {}
    for name, bound in asked.items():
        moved = moves.get(name, 0.0)
        bounds[name] = unsettled_share(moved, counted[name]) if name in counted else bound
        if bound and not settings.tolerance:
            bounds[name] = widened(bound, moved)
    noise = {
        name: moved
        for name, moved in moves.items()
        if bounds[name] > asked[name] or (asked[name] and widened(asked[name], moved) > asked[name])
    }
    source: Literal["user", "precision", "rounding"] = "rounding" if noise else "precision"
    if settings.tolerance:
        source = "user"
    return RunTolerance(
        value=max(bounds.values(), default=0.0),
        source=source,
        default=default,
        noise=noise,
        by_output=bounds if len(set(bounds.values())) > 1 else {},
    )
