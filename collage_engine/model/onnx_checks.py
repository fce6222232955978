"""Refuses what the engine cannot handle in an ONNX graph, naming the node and what to do."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import (
    ModelProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
    shape_inference,
)

from collage_engine.model.draft import Op, node_name
from collage_engine.model.onnx_outer_values import outer_values
from collage_engine.records.counted import counted
from collage_engine.records.errors import ModelError, UsageError

_RANDOM = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}


_FORMS = {
    "sequence_type": "a sequence of what are no tensors",
    "optional_type": "an optional value",
    "map_type": "a map",
    "sparse_tensor_type": "a sparse tensor",
}
"""Words for an input or output that is neither a tensor nor a sequence of tensors, by its ONNX
type."""


def check_graph(model: ModelProto, path: str) -> None:
    """Checks what no later step could handle; no shapes are needed for it.

    Raises:
        ModelError: The graph holds such a thing; the text says what to do.
    """
    graph = model.graph
    if not graph.output:
        raise ModelError(f"{path} has no outputs: nothing to compute.")
    if graph.sparse_initializer:
        raise ModelError(
            f"{path}: the sparse tensor '{graph.sparse_initializer[0].values.name}' is not "
            "supported: store it densely."
        )
    for tensor in graph.initializer:
        _check_tensor(tensor, f"the tensor '{tensor.name}'", path)
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            _check_value(value, kind, path)
    _check_nodes(model, path)


def _check_tensor(tensor: TensorProto, what: str, path: str) -> None:
    kind = tensor.data_type
    if kind in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        raise ModelError(f"{path}: {what} holds complex numbers: not supported.")
    if not kind or kind not in TensorProto.DataType.values():
        raise ModelError(f"{path}: {what} has the unknown element type {kind}.")
    if any(extent < 0 for extent in tensor.dims):
        raise ModelError(f"{path}: {what} has a negative size in {list(tensor.dims)}.")


def _check_value(value: ValueInfoProto, kind: str, path: str) -> None:
    form = value.type.WhichOneof("value")
    if form == "sequence_type" and value.type.sequence_type.elem_type.HasField("tensor_type"):
        _check_element(value.type.sequence_type.elem_type.tensor_type.elem_type, value, kind, path)
        return
    if form in ("sequence_type", "optional_type", "map_type", "sparse_tensor_type"):
        word = _FORMS[form]
        raise ModelError(f"{path}: the {kind} '{value.name}' is {word}, not a tensor.")
    element = value.type.tensor_type.elem_type
    if kind == "input" and (form is None or not element):
        raise ModelError(f"{path}: the input '{value.name}' has no element type.")
    _check_element(element, value, kind, path)


def _check_element(element: int, value: ValueInfoProto, kind: str, path: str) -> None:
    if element in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        raise ModelError(f"{path}: the {kind} '{value.name}' holds complex numbers: not supported.")
    if element not in TensorProto.DataType.values():
        raise ModelError(
            f"{path}: the {kind} '{value.name}' has the unknown element type {element}."
        )


def _check_nodes(model: ModelProto, path: str) -> None:
    graph = model.graph
    local = {(f.domain, f.name) for f in model.functions}
    known = {i.name for i in graph.input} | {i.name for i in graph.initializer} | {""}
    made: set[str] = set()
    for node in graph.node:
        name, op = node_name(node), node.op_type
        plain = node.domain in ("", "ai.onnx")
        if plain and (node.domain, op) not in local:
            _check_operator(name, op, path)
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise ModelError(f"{path}: the node '{name}' holds a sparse tensor: not supported.")
            if attribute.HasField("t"):
                _check_tensor(attribute.t, f"the node '{name}'", path)
        for value in (*node.input, *outer_values(node)):
            if value not in known:
                raise ModelError(
                    f"{path}: the node '{name}' ({op}) reads '{value}', which nothing before it "
                    "makes: the file is broken or its nodes are not sorted."
                )
        for value in node.output:
            if value in made:
                raise ModelError(f"{path}: the value '{value}' is made twice ('{name}').")
            if value:
                made.add(value)
                known.add(value)
    for output in graph.output:
        if output.name not in known:
            raise ModelError(f"{path}: nothing makes the output '{output.name}'.")


def _check_operator(name: str, op: str, path: str) -> None:
    """Refuse what no later step could handle, by the operator alone."""
    if op in _RANDOM:
        raise ModelError(
            f"{path}: the node '{name}' ({op}) draws random numbers: its results cannot be "
            "compared, so it is not supported."
        )


def check_operators(ops: Iterable[Op], path: str) -> None:
    """Check in the same way operators that came out of a branch or a definition."""
    for op in ops:
        if not op.domain:
            _check_operator(op.name, op.type, path)


def set_shapes(
    model: ModelProto, shapes: dict[str, tuple[int, ...]], path: str
) -> dict[str, tuple[int, ...]]:
    """Give every graph input its sizes, in place.

    A size given for one input also sets the same named dimension of the others. Returns the
    shapes that were given. Raises ``UsageError`` for a wrong ``--shape`` and ``ModelError``,
    naming the option that is needed, when sizes are still unknown.
    """
    weights = {i.name for i in model.graph.initializer}
    inputs = {i.name: i for i in model.graph.input if i.name not in weights}
    sizes: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            known = ", ".join(f"'{n}'" for n in inputs) or "none"
            raise UsageError(f"--shape {name}: {path} has no such input (it has {known}).")
        wanted = f"--shape {name}={','.join(map(str, shape))}"
        if any(size < 1 for size in shape) and not _has_zeros(inputs[name], shape):
            raise UsageError(f"{wanted}: sizes must be positive.")
        tensor = inputs[name].type.tensor_type
        if tensor.HasField("shape"):
            _match(tensor, shape, sizes, name, wanted)
        else:
            for size in shape:
                tensor.shape.dim.add().dim_value = size
    zero = any(
        d.HasField("dim_value") and d.dim_value == 0
        for value in inputs.values()
        for d in value.type.tensor_type.shape.dim
    )
    left = {name: value for name, value in inputs.items() if 0 not in shapes.get(name, ())}
    _refuse_open_sizes(left, sizes, path, zero and _has_empty_inputs(model))
    return {name: tuple(shape) for name, shape in shapes.items()}


def _has_zeros(value: ValueInfoProto, shape: tuple[int, ...]) -> bool:
    """Tells whether the file says that an input has no elements, just where a shape has zeros."""
    dims = value.type.tensor_type.shape.dim
    return len(dims) == len(shape) and all(
        size > 0 or (size == 0 and dim.HasField("dim_value") and dim.dim_value == 0)
        for dim, size in zip(dims, shape, strict=True)
    )


def _refuse_open_sizes(
    inputs: dict[str, ValueInfoProto],
    sizes: dict[str, tuple[int, str]],
    path: str,
    empty: bool,
) -> None:
    """Fill in the sizes that are given by name; raise ``ModelError`` for those still open.

    ``empty``: a size of 0 is meant as it stands.
    """
    unknown = []
    for name, value in inputs.items():
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            unknown.append((name, "of unknown rank", "1,..."))
            continue
        for dim in tensor.shape.dim:
            if not _known(dim) and dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param][0]
        if all(_known(d) for d in tensor.shape.dim):
            continue
        example = ",".join(str(d.dim_value) if _known(d) else "1" for d in tensor.shape.dim)
        if all(d.HasField("dim_value") and d.dim_value >= 0 for d in tensor.shape.dim):
            if empty:
                continue
            raise ModelError(
                f"{path}: the input '{name}' has the size "
                f"{[d.dim_value for d in tensor.shape.dim]} and so no elements: there is nothing "
                "to compute. Give its size: where 0 stands for one that is left open, for example "
                f"--shape {name}={example}; where there are no elements indeed, --shape "
                f"{name}={','.join(str(d.dim_value) for d in tensor.shape.dim)}"
            )
        sizes_shown = [
            str(d.dim_value) if _known(d) else d.dim_param or "?" for d in tensor.shape.dim
        ]
        unknown.append((name, f"[{', '.join(sizes_shown)}]", example))
    if unknown:
        said = "; ".join(f"'{name}' is {shape}" for name, shape, _ in unknown)
        options = " ".join(f"--shape {name}={example}" for name, _, example in unknown)
        if named := _open_names(inputs):
            options += " or " + " ".join(f"--dim {name}=1" for name in named)
        raise ModelError(
            f"{path} has inputs of unknown size ({said}): give them, for example {options}"
        )


def _has_empty_inputs(model: ModelProto) -> bool:
    """Return whether an input size of 0 is meant, and does not stand for one that is left open.

    It is where the sizes of all outputs are declared, none is 0, and nothing that follows from the
    inputs' sizes as they stand contradicts them.
    """
    declared = {o.name: o.type.tensor_type.shape for o in model.graph.output}
    if not all(
        o.type.tensor_type.HasField("shape") and all(map(_known, o.type.tensor_type.shape.dim))
        for o in model.graph.output
    ):
        return False
    copy = ModelProto()
    copy.CopyFrom(model)
    for output in copy.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        inferred = shape_inference.infer_shapes(copy, data_prop=True).graph.output
    except (shape_inference.InferenceError, ValueError):
        return False
    return all(_fits(o.type.tensor_type, declared[o.name]) for o in inferred)


def _fits(inferred: TypeProto.Tensor, declared: TensorShapeProto) -> bool:
    """Return whether what is inferred of a value's sizes does not contradict what is declared."""
    if not inferred.HasField("shape"):
        return True
    return len(inferred.shape.dim) == len(declared.dim) and all(
        not a.HasField("dim_value") or a.dim_value == b.dim_value
        for a, b in zip(inferred.shape.dim, declared.dim, strict=True)
    )


def _open_names(inputs: dict[str, ValueInfoProto]) -> list[str]:
    """Return the named dimensions that are open; none where an open one has no name."""
    dims = [d for value in inputs.values() for d in value.type.tensor_type.shape.dim]
    unknown = [d.dim_param for d in dims if not _known(d)]
    ranked = all(value.type.tensor_type.HasField("shape") for value in inputs.values())
    return list(dict.fromkeys(unknown)) if ranked and all(unknown) else []


def _known(dim: object) -> bool:
    # Exporters write 0 (or less) for "unknown" as often as they leave the size out.
    return bool(dim.HasField("dim_value") and dim.dim_value > 0)  # type: ignore[attr-defined]


def _match(
    tensor: TypeProto.Tensor,
    shape: tuple[int, ...],
    sizes: dict[str, tuple[int, str]],
    name: str,
    wanted: str,
) -> None:
    dims = tensor.shape.dim
    if len(dims) != len(shape):
        raise UsageError(f"{wanted}: the input '{name}' has {counted(len(dims), 'dimension')}.")
    for place, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if _known(dim) and dim.dim_value != size:
            raise UsageError(
                f"{wanted}: dimension {place} of the input '{name}' is fixed to {dim.dim_value}."
            )
        if dim.dim_param:
            before = sizes.setdefault(dim.dim_param, (size, wanted))
            if before[0] != size:
                raise UsageError(f"{wanted} contradicts {before[1]} about '{dim.dim_param}'.")
        dim.dim_value = size
