"""Imports an ONNX file as the dataflow graph, with Relax kept beside it.

The way: read and check, clean up in ONNX, import into Relax with every ONNX value bound,
number what the outputs need. The same file gives the same numbers in every process.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.dimensions import description, drop_values, kept_sizes, set_shapes
from collage_engine.model.frontend import Frontend, UnknownType
from collage_engine.model.observed_types import Evaluate, evaluate_by_definition
from collage_engine.model.onnx_checks import check_graph
from collage_engine.model.onnx_cleanup import CleanModel, Origin, clean_up
from collage_engine.model.onnx_file import read_model, write_plainly
from collage_engine.model.onnx_standard import check_standard, in_known_opset
from collage_engine.model.onnx_types import OnnxIndex
from collage_engine.model.opaque import OpaqueOperator
from collage_engine.model.random_inputs import random_inputs
from collage_engine.model.relax_graph import (
    OpenSize,
    Resolver,
    Value,
    constant_array,
    post_dfs,
)
from collage_engine.model.sequences import has_sequences, without_sequences
from collage_engine.model.value_kinds import ValueKinds
from collage_engine.model.whole_numbers import is_whole
from collage_engine.records.graph import (
    GraphRecord,
    ModelRecord,
    Node,
    NodeIndex,
    OpKind,
    TensorType,
    item_bytes,
)
from collage_engine.records.operators import OPERATORS, is_opaque
from collage_engine.support.errors import ModelError, UsageError, one_sentence, short_reason

_LOG = logging.getLogger(__name__)

_PATTERN_KINDS: dict[int, OpKind] = {
    0: "elementwise",
    1: "broadcast",
    2: "injective",
    3: "reduction",
    4: "anchor",
}
"""Kinds by the numbers of TVM's ``OpPatternKind``; any other is opaque."""


@dataclass
class ImportedModel:
    """A model as it was imported: the cleaned ONNX, the dataflow graph, and Relax beside it."""

    record: ModelRecord
    onnx: onnx.ModelProto
    """The cleaned ONNX model, which every toolchain that takes ONNX gets, and the reference run."""
    graph: DataflowGraph
    inputs: tuple[tuple[str, TensorType], ...]
    """Name and type of every input of the user's file that is no initializer, unused ones too."""
    outputs: tuple[tuple[str, TensorType], ...]
    _module: tvm.IRModule = field(repr=False)
    _exprs: tuple[Any, ...] = field(repr=False)
    _vars: tuple[Any, ...] = field(repr=False)
    _opaque: dict[int, OpaqueOperator] = field(default_factory=dict, repr=False)
    """The opaque operators of the graph, by node index."""
    defaults: tuple[str, ...] = ()
    """Inputs of the user's file that became constants, since it holds values for them."""
    kept: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    """The values that the file holds for inputs that stayed inputs all the same."""
    ir_version: int = 0
    """The version of ONNX's format in which the file is written."""
    described: dict[str, Any] = field(default_factory=dict, repr=False)
    """What the user's file says of the model, as ``description`` returns it."""
    _arrays: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def module(self) -> tvm.IRModule:
        """Return the cleaned Relax module: ``main`` is one dataflow block, constants in place."""
        return self._module

    def constant(self, index: int) -> np.ndarray:
        """Return the values of a constant node, which must not be written to.

        Raises:
            KeyError: The node is no constant.
        """
        if index not in self._arrays:
            if self.graph.nodes[index].form != "constant":
                raise KeyError(f"node {index} is no constant")
            self._arrays[index] = constant_array(self._exprs[index])
        return self._arrays[index]

    def expr(self, index: int) -> Any:
        """Return a node's Relax expression over the variables and constants of ``module``.

        It is a call's or projection's bound expression, a tuple, a constant, or a parameter's
        variable.
        """
        return self._exprs[index]

    def var(self, index: int) -> Any:
        """Return the variable that a parameter, call or projection is bound to in ``module``.

        Raises:
            KeyError: The node is written in place.
        """
        found = self._vars[index]
        if found is None:
            raise KeyError(f"node {index} is written in place, not bound to a variable")
        return found

    def opaque_operator(self, index: int) -> OpaqueOperator | None:
        """Return the ONNX nodes of an opaque operator; None where Relax has the operator."""
        return self._opaque.get(index)

    def random_inputs(self, seed: int, numbers: str = "normal") -> dict[str, np.ndarray]:
        """Return a random array for every input: floats of a range, integers as readers admit.

        Integers for which the file holds values are these: shapes, axes and counts, mostly.
        """
        drawn = random_inputs(self.graph, self.inputs, seed, numbers)
        for name, value in self.kept.items():
            if value.dtype == drawn[name].dtype and value.dtype.kind in "biu":
                drawn[name] = value.reshape(drawn[name].shape)
        return drawn

    @cached_property
    def onnx_index(self) -> OnnxIndex:
        """Returns the producers and weights of the cleaned model by the names of their values."""
        return OnnxIndex(self.onnx)


def import_model(
    path: str | Path,
    shapes: dict[str, tuple[int, ...]] | None = None,
    sha256: str | None = None,
    evaluate: Evaluate = evaluate_by_definition,
) -> ImportedModel:
    """Import an ONNX file.

    Args:
        path: The file; weights may lie beside it.
        shapes: Sizes of inputs by name, for those that the file leaves open (``--shape
            NAME=1,3,224,224``).
        sha256: The SHA-256, in hexadecimal, that the file must still have; None takes it as it is.
        evaluate: Runs an ONNX model, for types that cannot be inferred.

    Raises:
        UsageError: There is no such file, or a shape is for no input.
        ModelError: The file is no model, was changed, or holds what cannot be imported.
    """
    with _as_sentences(str(path)):
        model, digest = read_model(path)
        if sha256 is not None and digest != sha256:
            raise ModelError(f"{path} was changed while it was being worked on: open it again")
        return _import(model, str(path), digest, shapes or {}, evaluate)


def import_onnx(
    model: onnx.ModelProto,
    path: str = "",
    shapes: dict[str, tuple[int, ...]] | None = None,
    evaluate: Evaluate = evaluate_by_definition,
) -> ImportedModel:
    """Import a model that is in memory, which is not changed.

    Args:
        model: The ONNX model.
        path: What messages call the model.
        shapes: Sizes of inputs by name, for those that the model leaves open.
        evaluate: Runs an ONNX model, for types that cannot be inferred.

    Raises:
        UsageError: A shape is for no input.
        ModelError: The model holds what cannot be imported.
    """
    data = model.SerializeToString(deterministic=True)
    copy = onnx.load_model_from_string(data)
    digest = hashlib.sha256(data).hexdigest()
    path = path or "the model"
    with _as_sentences(path):
        write_plainly(copy, path)
        return _import(copy, path, digest, shapes or {}, evaluate)


@contextlib.contextmanager
def _as_sentences(path: str) -> Iterator[None]:
    """Turn what a file can make Python raise into one sentence that names the file."""
    try:
        yield
    except (ModelError, UsageError) as error:
        said = one_sentence(str(error))
        raise type(error)(said if path in said else f"{path}: {said}") from error
    except UnicodeDecodeError:
        raise ModelError(
            f"{path} holds a name or a text that is not UTF-8, which the ONNX standard does not "
            "allow."
        ) from None
    except MemoryError:
        raise ModelError(f"{path} needs more memory to be opened than is free.") from None
    except RecursionError:
        raise ModelError(f"{path} is nested too deeply to be opened.") from None
    except Exception as error:
        _LOG.warning("the import of %s failed", path, exc_info=True)
        raise ModelError(
            f"{path}: the import failed: {one_sentence(short_reason(error))}"
        ) from error


def _import(
    model: onnx.ModelProto,
    path: str,
    digest: str,
    shapes: dict[str, tuple[int, ...]],
    evaluate: Evaluate,
) -> ImportedModel:
    shapes = kept_sizes(model, shapes, path)
    kept = drop_values(model, shapes)
    held = {tensor.name for tensor in model.graph.initializer}
    defaults = tuple(value.name for value in model.graph.input if value.name in held)
    ir_version, described = model.ir_version, description(model)
    check_graph(model, path)
    check_standard(model, path)
    model = in_known_opset(model, path)
    if has_sequences(model):
        model, shapes = without_sequences(model, shapes, path, evaluate)
    given = set_shapes(model, shapes, path)
    onnx_nodes = len(model.graph.node)
    clean = clean_up(model, path)
    resolver = _resolved(clean, path, evaluate)
    values = list(post_dfs(resolver.parameters, resolver.outputs))
    graph, lived = _records(values, resolver, clean)
    weights = sum(n.type.bytes for n in graph.nodes if n.form == "constant")
    record = ModelRecord(
        path=path,
        sha256=digest,
        nodes=graph.record.count_nodes(range(len(graph.operators))),
        folded=tuple(n for n in clean.order if n not in lived),
        weights_bytes=weights,
        onnx_nodes=onnx_nodes,
        shapes=given,
    )
    module, exprs, variables = _rebuild(values, resolver)
    nodes = graph.nodes
    return ImportedModel(
        record=record,
        onnx=clean.onnx,
        graph=graph,
        inputs=tuple(
            (name, nodes[i].type)
            for name, i in zip(graph.record.input_names, graph.record.inputs, strict=True)
        ),
        outputs=tuple(
            (name, nodes[i].type)
            for name, i in zip(graph.record.output_names, graph.record.outputs, strict=True)
        ),
        defaults=defaults,
        kept=kept,
        ir_version=ir_version,
        described=described,
        _module=module,
        _exprs=exprs,
        _vars=variables,
        _opaque={i: resolver.operators[v.owner] for i, v in enumerate(values) if is_opaque(v.op)},
    )


def _resolved(clean: CleanModel, path: str, evaluate: Evaluate) -> Resolver:
    """Return the values of the cleaned model in Relax.

    Where a converter gives another type than ONNX infers, or none, its node becomes an opaque
    operator. Types that ONNX does not infer and an opaque operator needs are observed, unless the
    size depends on the data. The nodes of ``clean`` are ordered anew where some are enclosed.

    Raises:
        ModelError: A node can be neither converted nor made opaque.
    """
    kinds = ValueKinds(clean, evaluate)
    opaque: set[str] = set()
    while True:
        parts = kinds.parts(opaque)
        try:
            resolver = Resolver(Frontend(clean.onnx, path, kinds.types, parts).run(), path)
        except UnknownType as error:
            kinds.find_out(error)
            continue
        except OpenSize as error:
            if error.value in opaque:
                raise
            opaque.add(error.value)
            continue
        wrong = resolver.wrong_types(kinds.types)
        for first, sentence in wrong.items():
            if first in opaque:
                raise ModelError(sentence)
        if not wrong:
            return resolver
        opaque.update(wrong)


def _records(
    values: list[Value], resolver: Resolver, clean: CleanModel
) -> tuple[DataflowGraph, set[str]]:
    """Return the dataflow graph's records, and the user's node names that live on in it."""
    index = {id(v): NodeIndex(i) for i, v in enumerate(values)}
    outputs = tuple(index[id(v)] for v in resolver.outputs)
    origins = {
        index[id(value)]: _origins(value, resolver, clean)
        for value in values
        if value.form == "call"
    }
    numbers = _numbers_of_nodes(origins)
    lived: set[str] = set()
    nodes = []
    for value in values:
        number = index[id(value)]
        come_from = origins.get(number, [])
        onnx_nodes = tuple(dict.fromkeys(name for each in come_from for name in each.names))
        lived.update(onnx_nodes)
        name = onnx_nodes[0] if onnx_nodes else value.name if value.form != "call" else ""
        nodes.append(
            Node(
                index=number,
                form=value.form,
                op=value.op,
                attributes=value.attributes,
                inputs=tuple(index[id(i)] for i in value.inputs),
                types=value.types,
                is_tuple=value.is_tuple,
                kind=_kind(value, resolver),
                name=name,
                field=value.field,
                onnx_nodes=onnx_nodes,
                onnx_node=numbers.get(number, -1),
                scope=come_from[0].scope if come_from else (),
                onnx_type=come_from[0].type if come_from and not is_opaque(value.op) else "",
                onnx_value=value.onnx_value,
                scalar=value.form == "constant" and value.types[0].shape == (),
                largest=_largest(value) if value.form == "constant" else None,
            )
        )
    graph = clean.onnx.graph
    record = GraphRecord(
        nodes=tuple(nodes),
        inputs=tuple(index[id(p)] for p in resolver.parameters),
        outputs=outputs,
        input_names=tuple(i.name for i in graph.input),
        output_names=tuple(o.name for o in graph.output),
    )
    return DataflowGraph(record), lived


def _largest(constant: Value) -> int | None:
    """Return the largest magnitude of whole numbers of more than 8 bits; None of others."""
    kind = constant.types[0]
    if not is_whole(kind) or item_bytes(kind.dtype) == 1 or not kind.elements:
        return None
    array = constant_array(constant.expr)
    return max(int(array.max()), -int(array.min()))


def _origins(value: Value, resolver: Resolver, clean: CleanModel) -> list[Origin]:
    """Return where the cleaned nodes of a call come from; an opaque operator may hold several."""
    operator = resolver.operators.get(value.owner)
    if operator is None:
        return [clean.origins.get(value.owner, Origin())]
    firsts = (next(o for o in node.output if o) for node in operator.nodes)
    return [clean.origins.get(first, Origin()) for first in firsts]


def _numbers_of_nodes(origins: Mapping[NodeIndex, list[Origin]]) -> dict[NodeIndex, int]:
    """Return the number of each call's ONNX node; nodes are numbered by their first calls."""
    united: dict[int, int] = {}

    def stands_for(node: int) -> int:
        while node in united:
            node = united[node]
        return node

    keys: dict[NodeIndex, int] = {}
    for index, come_from in origins.items():
        keys[index], *others = [n for origin in come_from for n in origin.nodes] or [-1 - index]
        for other in others:
            if stands_for(other) != stands_for(keys[index]):
                united[stands_for(other)] = stands_for(keys[index])
    numbers: dict[int, int] = {}
    return {i: numbers.setdefault(stands_for(key), len(numbers)) for i, key in keys.items()}


def _kind(value: Value, resolver: Resolver) -> OpKind:
    if value.form == "constant":
        return "elementwise"
    if value.form in ("tuple", "projection"):
        return "injective"
    if value.form != "call":
        return "opaque"
    if is_opaque(value.op):
        return "opaque"
    row = OPERATORS.get(value.op)
    if row is not None:
        return row.kind
    if _is_call_tir(value.expr):
        return _kind_of_loops(resolver.functions[value.expr.args[0].name_hint])
    return "opaque"


def _kind_of_loops(function: Any) -> OpKind:
    """Return what TVM reads off the loops of a kernel that the importer wrote itself."""
    annotated = relax.transform.AnnotateTIROpPattern()(tvm.IRModule({"f": function}))["f"]
    return _PATTERN_KINDS.get(int(annotated.attrs["op_pattern"]), "opaque")


def _rebuild(
    values: list[Value], resolver: Resolver
) -> tuple[tvm.IRModule, tuple[Any, ...], tuple[Any, ...]]:
    """Rebuilds the Relax module in the graph's own order.

    Returns:
        The module, with each node's expression and variable.
    """
    outgoing = {id(v) for v in resolver.outputs}
    now: dict[int, Any] = {}
    exprs: list[Any] = []
    variables: list[Any] = []
    bindings = []
    for number, value in enumerate(values):
        if value.form in ("parameter", "constant"):
            now[id(value)] = value.expr
            exprs.append(value.expr)
            variables.append(value.expr if value.form == "parameter" else None)
            continue
        arguments = [now[id(i)] for i in value.inputs]
        if value.form == "tuple":
            whole = relax.Tuple(arguments)
            now[id(value)] = whole
            exprs.append(whole)
            variables.append(None)
            continue
        if value.form == "projection":
            expr, ty = relax.TupleGetItem(arguments[0], value.field), None
            ty = arguments[0].ty.fields[value.field]
        else:
            expr, ty = _with_arguments(value, arguments), value.expr.ty
        kind = relax.Var if id(value) in outgoing else relax.DataflowVar
        variable = kind(f"v{number}", ty)
        if value.form != "projection":  # its type comes with the tuple's
            relax.expr._update_type(expr, ty)
        bindings.append(relax.VarBinding(variable, expr))
        now[id(value)] = variable
        exprs.append(expr)
        variables.append(variable)
    results = [now[id(v)] for v in resolver.outputs]
    body = results[0] if len(results) == 1 else relax.Tuple(results)
    blocks = [relax.DataflowBlock(bindings)] if bindings else []
    parameters = [p.expr for p in resolver.parameters]
    builder = relax.BlockBuilder()
    function = relax.Function(
        parameters, builder.normalize(relax.SeqExpr(blocks, body)), None, is_pure=True
    ).with_attr("num_input", len(parameters))
    function = function.with_attr("global_symbol", "main")
    used = {e.args[0] for e in exprs if _is_call_tir(e)}
    functions = {g: f for g, f in resolver.prim_funcs.items() if g in used}
    module = tvm.IRModule({tvm.ir.GlobalVar("main"): function, **functions})
    return module, tuple(exprs), tuple(variables)


def _is_call_tir(expr: Any) -> bool:
    return isinstance(expr, tvm.ir.Call) and str(expr.op.name).startswith("relax.call_tir")


def _with_arguments(value: Value, arguments: list[Any]) -> Any:
    """Return the raw call on the rebuilt graph's variables."""
    from collage_engine.model.attributes import is_tensor, is_tensor_tuple, takes_a_tuple

    call = value.expr
    fresh = iter(arguments)
    if takes_a_tuple(call):
        args = [call.args[0], relax.Tuple(arguments), *call.args[2:]]
    else:
        args = [next(fresh) if is_tensor(a) or is_tensor_tuple(a) else a for a in call.args]
    return tvm.ir.Call(call.op, args, call.attrs, call.ty_args)
