"""How far a small error of a value inside a model is carried to the model's results.

Later operators damp rounding errors (they average, normalise, pool) or amplify them (a softmax of
large logits), each place in a model by a factor of its own, often a hundredfold apart. So the
factor is measured: the model is evaluated as ONNX with noise added to one value at a time. One
session serves all values: each has its noise multiplied by a scalar input that is zero unless it
is that value's turn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from collage_engine.lowering.accuracy import worst
from collage_engine.model.mapped_weights import mapped_weights
from collage_engine.records.errors import Cancelled, ToolchainError
from collage_engine.records.flag import Flag
from collage_engine.records.reasons import short_reason
from collage_engine.toolchains.registry import onnx_evaluator

if TYPE_CHECKING:
    from onnx import ModelProto

    from collage_engine.model.importer import ImportedModel

_LOG = logging.getLogger(__name__)

NOISE_LEVEL = 2e-3
"""max|noise| / max|value|. Chosen: about what rounding to bfloat16 leaves in a product's result."""
SEED = 20260101
"""Seed of the noise, so that a run can be repeated. Chosen."""
CHANNEL_VARIANCE_SHARE = 0.3
"""Share of the noise's variance that is the same all over a channel. Chosen."""
COMPARED_VALUES = 6
"""Values by which the samples are compared, to take the one that carries errors furthest.
Chosen."""


def carried(
    model: ImportedModel,
    samples: Sequence[Mapping[str, np.ndarray]],
    values: Iterable[int],
    *,
    threads: int = 1,
    limit_s: float = 20.0,
    cancel: Flag | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> dict[int, float]:
    """Return how much larger or smaller an error of each value has become at the model's results.

    The factor is measured on the sample that carries errors furthest, as a few values tell.

    Args:
        model: The imported model.
        samples: Inputs by name, at least one sample.
        values: Node indices. Only float32 values that the cleaned ONNX model has get a factor.
        threads: Threads of what evaluates the model.
        limit_s: Seconds after which the rest of the values, evenly spread over the model, is
            left without a factor.
        cancel: Set by whoever wants it to stop.
        warn: Called with the reason where there are no factors at all.

    Returns:
        ``max_rel_error`` of the worst output over that of the value, by node index; at least 1
        for an output. Empty, after ``warn``, where nothing here evaluates ONNX or what does
        refuses the model: the factors save trials only, and what is promised is measured without
        them. A defect in what is written for the evaluator is raised as it is.

    Raises:
        Cancelled: ``cancel`` was set.
    """
    nodes = model.graph.nodes
    names = {
        index: str(nodes[index].onnx_value)
        for index in values
        if nodes[index].onnx_value and nodes[index].type.dtype == "float32"
    }
    try:
        probe = _Probe(model, sorted(set(names.values())), threads)
    except ToolchainError as error:
        _LOG.warning("errors cannot be followed through the model", exc_info=True)
        warn(f"how far the model carries rounding errors is not known: {error}")
        return {}
    end = time.monotonic() + limit_s
    order = _spread(list(dict.fromkeys(names[index] for index in sorted(names))))

    def errors(sample: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, float]:
        truth, largest = probe.plain(sample)
        found = {}
        for name in names:
            if cancel is not None and cancel.is_set():
                raise Cancelled("stopped while errors were followed through the model")
            if time.monotonic() > end:
                break
            error = probe.error(sample, truth, name, largest.get(name, 0.0))
            if error is not None:
                found[name] = max(error / NOISE_LEVEL, 1.0 if name in probe.outputs else 0.0)
        return found

    worst_sample = samples[0]
    if len(samples) > 1:
        worst_sample = max(samples, key=lambda s: sum(errors(s, order[:COMPARED_VALUES]).values()))
    found = errors(worst_sample, order)
    return {index: found[name] for index, name in names.items() if name in found}


def _spread(items: Sequence[str]) -> list[str]:
    """Return all items in an order in which every prefix is spread over the whole."""
    order: dict[str, None] = {}
    step = 1 << max(0, len(items) - 1).bit_length()
    while step:
        order.update(dict.fromkeys(items[step // 2 :: step] if step > 1 else items))
        step //= 2
    return list(order)


def _rounding_like(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return noise such as a product of rounded operands has.

    Rounded activations err differently at every place. A rounded weight errs alike wherever
    activations are alike, so that a part of the error is the same over an image or a sequence.
    Averages do not remove that part, which is why the noise has it, too.

    Args:
        random: The source of the noise.
        shape: The shape of the value; channels are its second axis of four or more, else its last
            one.
    """
    noise = random.standard_normal(shape, dtype=np.float32)
    if len(shape) < 2:
        return noise
    channel = 1 if len(shape) > 3 else len(shape) - 1
    along = tuple(e if axis == channel else 1 for axis, e in enumerate(shape))
    alike = random.standard_normal(along, dtype=np.float32)
    return (
        np.float32((1 - CHANNEL_VARIANCE_SHARE) ** 0.5) * noise
        + np.float32(CHANNEL_VARIANCE_SHARE**0.5) * alike
    )


class _Probe:
    """A session over the model with a place for noise at every value in question.

    Raises:
        ToolchainError: No toolchain here evaluates ONNX models, or the one that does refuses.
    """

    def __init__(self, model: ImportedModel, values: Sequence[str], threads: int) -> None:
        oracle = onnx_evaluator()
        if oracle is None:
            raise ToolchainError("no toolchain here evaluates ONNX models")
        self.outputs = [output.name for output in model.onnx.graph.output]
        self._inputs = {value.name for value in model.onnx.graph.input}
        self._noise: dict[str, float] = {}
        noisy = self._with_noise(model, values)
        written = noisy.SerializeToString()
        try:
            weights = mapped_weights(noisy.graph.initializer)
            self._session = oracle.open_onnx(
                written, threads=threads, optimise=True, weights=weights
            )
        except Exception as error:  # a library's error classes have no common base but this
            raise ToolchainError(short_reason(error)) from error

    def _with_noise(self, model: ImportedModel, values: Sequence[str]) -> ModelProto:
        """Return the model with noise added to values, times a scalar input for each of them.

        Each value also has an output for its largest magnitude.
        """
        from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

        noisy = ModelProto()
        noisy.CopyFrom(model.onnx)
        graph = noisy.graph
        shapes = {
            node.onnx_value: node.type.shape
            for node in model.graph.nodes
            if node.onnx_value and not node.is_tuple
        }
        made = {name: at for at, node in enumerate(graph.node) for name in node.output}
        wanted = [name for name in values if name in made and name in shapes]
        random = np.random.default_rng(SEED)
        # One array of noise for all values of a shape; sizes and slices have changed over opsets.
        noise = {
            shape: _rounding_like(random, shape)
            for shape in dict.fromkeys(shapes[name] for name in wanted)
        }
        of_shape = {shape: f"collage/noise{number}" for number, shape in enumerate(noise)}
        constants = [numpy_helper.from_array(noise[s], name) for s, name in of_shape.items()]
        self._noise = {
            name: float(np.abs(noise[shapes[name]]).max(initial=1e-30)) for name in wanted
        }
        after: dict[int, list[NodeProto]] = {}
        for place, name in enumerate(wanted):
            mark = f"collage/{place}"
            constants.append(numpy_helper.from_array(np.zeros((), np.float32), f"{mark}/scale"))
            for field, which in ((graph.input, "scale"), (graph.output, "largest")):
                field.append(
                    helper.make_tensor_value_info(f"{mark}/{which}", TensorProto.FLOAT, [])
                )
            parts = [
                ("Mul", [of_shape[shapes[name]], f"{mark}/scale"], f"{mark}/scaled"),
                ("Add", [name, f"{mark}/scaled"], f"{mark}/noisy"),
                ("Abs", [name], f"{mark}/abs"),
            ]
            added = [helper.make_node(op, given, [out]) for op, given, out in parts]
            added.append(
                helper.make_node("ReduceMax", [f"{mark}/abs"], [f"{mark}/largest"], keepdims=0)
            )
            after.setdefault(made[name], []).extend(added)
        renamed = {name: f"collage/{place}/noisy" for place, name in enumerate(wanted)}
        self._marks = {name: f"collage/{place}" for place, name in enumerate(wanted)}
        nodes: list[NodeProto] = []
        for at, node in enumerate(graph.node):
            copy = NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = [renamed.get(name, name) for name in node.input]
            nodes += [copy, *after.get(at, ())]
        del graph.node[:]
        graph.node.extend(nodes)
        graph.initializer.extend(constants)
        return noisy

    def plain(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], dict[str, float]]:
        """Return the outputs without noise, and the largest magnitude of every value."""
        names = list(self._marks)
        wanted = self.outputs + [f"{self._marks[name]}/largest" for name in names]
        found = self._session.run(wanted, self._feeds(inputs))
        count = len(self.outputs)
        return found[:count], {
            name: float(value) for name, value in zip(names, found[count:], strict=True)
        }

    def error(
        self,
        inputs: Mapping[str, np.ndarray],
        truth: Sequence[np.ndarray],
        name: str,
        largest: float,
    ) -> float | None:
        """Return the outputs' ``max_rel_error`` with noise on one value.

        Args:
            inputs: The model's inputs by name.
            truth: The outputs without noise.
            name: The value.
            largest: Its largest magnitude, of which the noise's is the share ``NOISE_LEVEL``.

        Returns:
            The error; None where the value has no place for noise, or the error is not finite.
        """
        if name not in self._marks or largest <= 0 or not np.isfinite(largest):
            return None
        scale = np.float32(NOISE_LEVEL * largest / self._noise[name])
        feeds = self._feeds(inputs) | {f"{self._marks[name]}/scale": np.array(scale)}
        found = self._session.run(self.outputs, feeds)
        error = worst(zip(found, truth, strict=True))[1]
        return error if np.isfinite(error) else None

    def _feeds(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: value for name, value in inputs.items() if name in self._inputs}
