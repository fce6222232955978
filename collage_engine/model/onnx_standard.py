"""Asks the ONNX standard's own checks of every model before anything is done with it.

``check_standard`` asks ``onnx.checker`` whether every node has the inputs, outputs and attributes
that its operator has. ``check_inference`` asks ``onnx.shape_inference``, strictly, whether the
types and sizes fit. Both are asked about the model without its large weights, so that a model of
gigabytes is checked in the same time. What neither looks at (ranges of attributes and indices) is
found by whatever computes the node first, in a process with limits of time and memory.

What ONNX Runtime refuses and this project takes, knowingly: format versions (``ir_version``) newer
than it knows, operator types that it has no kernel for, weights in branches that are not taken,
declared sizes of outputs and intermediate values that contradict what is inferred (the inferred
ones hold), and names that stand twice.
"""

from __future__ import annotations

import logging
import math

import onnx
from onnx import (
    ModelProto,
    TypeProto,
    checker,
    defs,
    shape_inference,
    version_converter,
)

from collage_engine.machine.device import memory_bytes
from collage_engine.model.dimensions import open_inputs
from collage_engine.model.draft import Draft
from collage_engine.model.onnx_expand import SOFTMAX_OF_ONE_AXIS
from collage_engine.model.onnx_external import LEAST_BYTES, is_mapped
from collage_engine.model.onnx_outer_values import branches, with_branches
from collage_engine.model.onnx_types import opset_of
from collage_engine.model.opaque import is_standard
from collage_engine.support.errors import ModelError, displayable

_LOG = logging.getLogger(__name__)

OLDEST_OPSET = 7
"""Operator set of the standard from which on models are imported as they are; older ones broadcast
by attributes."""
_OF_RUNTIMES = "of runtimes"
"""Domain by which the checker is told of operators that the standard lacks."""


def check_standard(model: ModelProto, path: str) -> None:
    """Check the nodes of a model, its branches and its functions against the standard.

    Raises:
        ModelError: The standard does not allow it; the sentence names the node and says why.
    """
    newest = defs.onnx_opset_version()
    for imported in model.opset_import:
        if not imported.domain and imported.version > newest:
            raise ModelError(
                f"{path} uses ONNX operator set {imported.version}; {newest} is the newest that is "
                f"known here: export the model with operator set {newest} or an older one."
            )
    try:
        checker.check_model(_skeleton(model))
    except checker.ValidationError as error:
        raise ModelError(f"{path} is not what the ONNX standard allows: {error}") from None
    except ValueError as error:  # more than protobuf can write
        raise ModelError(f"{path} cannot be checked: {error}") from None


def in_known_opset(model: ModelProto, path: str) -> ModelProto:
    """Return the model in an operator set that the importer knows: ONNX converts older ones.

    A model without an operator of the standard's own domain needs none of its operator sets, and
    is given one: as what is converted, that from which on no softmax need be written out.

    Args:
        model: The model, which fits the standard.
        path: The user's file, for messages.

    Raises:
        ModelError: ONNX's converter does not bring the model to a newer operator set; or it does
            not say of which it is.
    """
    version = opset_of(model)
    if version is None and all(n.domain for n in model.graph.node):
        model.opset_import.add().version = SOFTMAX_OF_ONE_AXIS
    elif version is None:
        raise ModelError(
            f"{path} has operators of the standard and does not say of which operator set "
            "(opset_import): export the model again."
        )
    elif version < OLDEST_OPSET:
        try:
            return version_converter.convert_version(model, SOFTMAX_OF_ONE_AXIS)
        except (RuntimeError, ValueError, version_converter.ConvertError) as error:
            _LOG.info("onnx.version_converter says: %s", error)
            raise ModelError(
                f"{path} uses ONNX operator set {version}, which ONNX's own converter does not "
                f"bring to a newer one: export the model again with operator set {OLDEST_OPSET} "
                "or newer."
            ) from error
    return model


def check_inference(skeleton: ModelProto, path: str) -> ModelProto:
    """Infers all types and sizes, strictly.

    Args:
        skeleton: The model without large weights; what it declares about values is believed.
        path: The user's file, for messages.

    Returns:
        The model with what is inferred about its values.

    Raises:
        ModelError: An operator's inputs do not fit it; the sentence names the node.
    """
    try:
        return shape_inference.infer_shapes(skeleton, strict_mode=True, data_prop=True)
    except shape_inference.InferenceError as error:
        lines = [line for line in str(error).splitlines() if line]
    # ONNX 1.23 fails to bind attributes that a node leaves out within the definition of an operator
    # that it defines by others (MeanVarianceNormalization's axes): lines that name two operators.
    # What reads a result that no inference is for (Scaler's), or that of such an operator, has an
    # input without a type, for no reason of its own.
    own = [
        line
        for line in lines
        if line.count("(op_type:") < 2 and "expected to have type but instead is null" not in line
    ]
    if not own:
        return infer_loosely(skeleton, path)
    raise ModelError(f"{path}: the inputs of a node do not fit it: {own[0]}")


def infer_loosely(skeleton: ModelProto, path: str) -> ModelProto:
    """Infers what can be inferred; nodes whose inputs do not fit (yet) are passed over.

    Raises:
        ModelError: What is declared contradicts what is inferred.
    """
    try:
        return shape_inference.infer_shapes(skeleton, data_prop=True)
    except shape_inference.InferenceError as error:
        raise ModelError(f"{path}: the model's shapes do not fit: {error}") from None


def check_sizes(draft: Draft) -> None:
    """Check that every value has a size, and one that this machine could hold.

    Raises:
        ModelError: A size is negative, or the value alone is larger than the machine's memory.
    """
    most = memory_bytes()
    for name, (_, shape) in draft.types.items():
        if shape is None:
            continue
        if any(extent < 0 for extent in shape):
            raise ModelError(
                f"{draft.path}: the value '{displayable(name)}' has a negative size: {shape}."
            )
        if math.prod(shape) > most:  # every element takes a byte or more
            raise ModelError(
                f"{draft.path}: the value '{displayable(name)}' of size {shape} does not fit into "
                f"this machine's memory of {most / 2**30:.0f} GiB."
            )


def _skeleton(model: ModelProto) -> ModelProto:
    """Return a copy to check: large weights are inputs, declared sizes are left out.

    What is left out is never read from the file: declared sizes of values are inferred instead.
    """
    copy = ModelProto()
    copy.ir_version = min(max(model.ir_version, 8), onnx.IR_VERSION)
    copy.producer_name = "collage"
    copy.opset_import.extend(model.opset_import)
    if all(each.domain for each in copy.opset_import):
        copy.opset_import.add().version = 1
    copy.functions.extend(model.functions)
    graph = copy.graph
    graph.name = model.graph.name or "model"
    for name in open_inputs(model):
        graph.input.add(name=name, type=_SCALAR)
    for tensor in model.graph.initializer:
        if is_mapped(tensor) or tensor.ByteSize() > LEAST_BYTES:
            graph.input.add(name=tensor.name, type=_SCALAR)
        else:
            graph.initializer.add().CopyFrom(tensor)
    for node in model.graph.node:
        if node.op_type == "Constant" and not node.domain and node.ByteSize() > LEAST_BYTES:
            for output in node.output:
                graph.input.add(name=output, type=_SCALAR)
        else:
            graph.node.add().CopyFrom(node)
    for branch in branches(with_branches(graph.node)):
        branch.name = branch.name or "branch"
        del branch.value_info[:]  # what exporters do not fill
        for value in (*branch.input, *branch.output):
            value.type.CopyFrom(_SCALAR)
    _set_apart(copy)
    for value in model.graph.output:
        graph.output.add(name=value.name, type=_SCALAR)
    return copy


def _set_apart(model: ModelProto) -> None:
    """Give operators in the standard's domain that it lacks in all versions a domain of their own.

    The checker knows nothing of operators of other domains and passes them over.
    """
    local = {(f.domain, f.name) for f in model.functions}
    bodies = [node for f in model.functions for node in f.node]
    for node in with_branches((*model.graph.node, *bodies)):
        plain = not node.domain and (node.domain, node.op_type) not in local
        if plain and not is_standard(node):
            node.domain = _OF_RUNTIMES
    for imports in (model.opset_import, *(f.opset_import for f in model.functions)):
        imports.add(domain=_OF_RUNTIMES, version=1)


_SCALAR = TypeProto(tensor_type=TypeProto.Tensor(elem_type=1))
_SCALAR.tensor_type.shape.SetInParent()
"""What the checker, which looks at no types here, gets instead of a declared type."""
