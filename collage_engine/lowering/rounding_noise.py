"""How far a model's outputs move when its numbers change in the last bit.

Every toolchain computes a float32 model in an order of its own, so that intermediate values differ
in their last bits. Most models damp these differences; some amplify them: a softmax of large
logits, a normalisation by a small deviation, a value on the border between two quantisation steps.
A difference that the model makes of the last bit is no defect of a toolchain, so that the tolerance
must not be smaller than a multiple of the model's own *rounding noise*.

The noise is measured with the evaluator of ONNX models, as written and with nothing optimised: the
float values of the inputs and of the weights are multiplied by ``1 + s * 2**-23`` with random signs
``s``, and the outputs are compared with those of the same model unchanged. Changing the weights
stands for changing the arithmetic, since each product changes in its last bit. Outputs are compared
one by one: an output of coordinates up to 300 hides no error of scores up to 1.

Exact ties are no rounding: which of two equal scores counts, the standard says. So equal values get
equal signs; inputs that are whole numbers, which every toolchain represents exactly, are left as
they are; and so are weights that are whole numbers wherever they meet nothing but such numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from collage_engine.lowering.accuracy import NOISE_FACTOR, counts_values
from collage_engine.lowering.reference import run_onnx
from collage_engine.machine.loader.run_artifact import error_of
from collage_engine.model.onnx_external import MAPPED_FROM_BYTES, data_bytes
from collage_engine.support.errors import Cancelled
from collage_engine.support.time_limits import LEAST_S

if TYPE_CHECKING:
    from onnx import ModelProto

TRIES = 3
"""Times that the numbers are changed, each time with other signs; chosen: where steps of a
quantised model flip, one try may show a small part of what the next one shows."""
FAR_BELOW = NOISE_FACTOR**-2
"""Share of the default tolerance: noise of the first try that is so much below what would widen the
tolerance needs no second try, unless the model quantises or gives whole numbers."""
LAST_BIT = 2.0**-23
"""Relative change. Values of float64 change as much, since toolchains may compute them in float32;
those of half precision do not change: their tolerance allows for their own roundings."""
ROUNDING = ("QuantizeLinear", "DynamicQuantize", "QLinear", "QGemm")
"""How the types of operators begin that round to 8 bits."""
PERTURBED = frozenset(
    (
        *("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "PRelu"),
        *("Add", "Sub", "Mul", "Div", "QuantizeLinear", "DequantizeLinear"),
        *("BatchNormalization", "InstanceNormalization", "LayerNormalization"),
        *("GroupNormalization", "RMSNormalization"),
    )
)
"""Operators whose float constants are weights. Those of others may be sizes, scales of a resize or
exponents, where the last bit decides on shapes and not on rounding."""


def rounding_noise(
    model: ModelProto,
    inputs: Mapping[str, np.ndarray],
    default: float,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> list[float] | None:
    """Return the largest movement of each output, as ``max|y-r| / max|r|``, in several tries.

    Args:
        model: The model.
        inputs: One array for each of its inputs, by name.
        default: The tolerance that holds without noise.
        stopped: Whether the user wants it to stop; asked between tries.

    Returns:
        In the order of the outputs, of whole numbers the share that moves; infinite where an output
        is finite in one of the runs only.
        None where nothing here evaluates the model.

    Raises:
        Cancelled: ``stopped`` said so.
    """
    expected = {value.name for value in model.graph.input}
    given = {name: array for name, array in inputs.items() if name in expected}
    end = time.monotonic() + LEAST_S
    try:
        truth = run_onnx(model, given)
    except Exception:  # each evaluator of ONNX has error classes of its own
        return None
    random = np.random.default_rng(0)
    noise = [0.0] * len(truth)
    few_bytes = (
        sum(map(data_bytes, model.graph.initializer)) < MAPPED_FROM_BYTES
    )  # each try copies them
    steps = any(node.op_type.startswith(ROUNDING) for node in model.graph.node)
    steps = steps or any(counts_values(array.dtype) for array in truth)
    for number in range(TRIES):
        if stopped():
            raise Cancelled("stopped while the model's rounding noise was measured")
        is_known = number > 0 and not steps and max(noise, default=0.0) < FAR_BELOW * default
        if is_known or (number and time.monotonic() > end):
            break
        inputs_now = {name: _changed(array, random, whole=False) for name, array in given.items()}
        unsettled = {n for n, a in inputs_now.items() if not np.array_equal(a, given[n])}
        changed = _changed_weights(model, random, unsettled) if few_bytes else model
        moved = run_onnx(changed, inputs_now)
        noise = [max(old, error_of(y, r)[1]) for old, y, r in zip(noise, moved, truth, strict=True)]
    return noise


def _changed(array: np.ndarray, random: np.random.Generator, *, whole: bool) -> np.ndarray:
    """Return an array with each float multiplied by one plus or minus the last bit.

    The sign is a hash of the value (multiply-shift, Dietzfelbinger et al. 1997), so that equal
    values stay equal. Arrays of other types than float32 and float64 are returned as they are.

    Args:
        array: The values.
        random: The source of the hash function.
        whole: Whether whole numbers are changed, too.
    """
    if array.dtype not in (np.float32, np.float64):
        return array
    width = 8 * array.dtype.itemsize
    word = np.dtype(f"uint{width}").type
    factor = word((2 * int(random.integers(0, 2**62)) + 1) % 2**width)
    high = (np.ascontiguousarray(array).view(word) * factor) >> word(width - 1)
    signs = high.astype(np.int8).reshape(array.shape) * 2 - 1
    changed: np.ndarray = array * (1 + signs * LAST_BIT).astype(array.dtype)
    return changed if whole else np.where(array == np.trunc(array), array, changed)


def _changed_weights(
    model: ModelProto, random: np.random.Generator, unsettled: set[str]
) -> ModelProto:
    """Return a copy of the model whose weights are changed in the last bit.

    Args:
        model: The model.
        random: The source of the signs.
        unsettled: Names of values that change; whole numbers change where they meet these.
    """
    from onnx import ModelProto, TensorProto, numpy_helper

    from collage_engine.model.onnx_file import tensor_array

    copy = ModelProto()
    copy.CopyFrom(model)
    unsettled = set(unsettled)
    readers: dict[str, set[str]] = {}
    for node in copy.graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type)
    weights = {}
    for tensor in copy.graph.initializer:
        read_by = readers.get(tensor.name, set())
        is_float = tensor.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE)
        if read_by and read_by <= PERTURBED and is_float:
            weights[tensor.name] = tensor
            array = tensor_array(tensor, tensor.name)
            if not np.array_equal(array, np.trunc(array), equal_nan=True):
                unsettled.add(tensor.name)
    meeting = unsettled & weights.keys()
    for node in copy.graph.node:
        if not unsettled.isdisjoint(node.input):
            unsettled.update(node.output)
            meeting.update(weights.keys() & set(node.input))
    for name in weights:
        if name in meeting:
            changed = _changed(tensor_array(weights[name], name), random, whole=True)
            weights[name].CopyFrom(numpy_helper.from_array(changed, name))
    return copy


def widened(default: float, noise: float) -> float:
    """Return the tolerance of an output: the default, or a multiple of its rounding noise.

    It is less than 1, which is the error of an output that is zero everywhere.
    """
    return max(default, min(1 - default, NOISE_FACTOR * noise))
