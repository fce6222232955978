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
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from collage_engine.model.attributes import is_tensor, is_tensor_tuple, takes_a_tuple
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.dimensions import description, drop_values, kept_sizes, set_shapes
from collage_engine.model.draft import Op
from collage_engine.model.frontend import Frontend, UnknownType
from collage_engine.model.observed_types import Evaluate, evaluate_by_definition
from collage_engine.model.onnx_checks import check_graph
from collage_engine.model.onnx_cleanup import CleanModel, clean_up
from collage_engine.model.onnx_file import read_model, write_plainly
from collage_engine.model.onnx_standard import check_standard, in_known_opset
from collage_engine.model.onnx_types import OnnxIndex
from collage_engine.model.random_inputs import random_inputs
from collage_engine.model.relax_graph import (
    OpenSize,
    RelaxCall,
    Resolver,
    Tensor,
    constant_array,
    post_dfs,
)
from collage_engine.model.sequences import without_sequences
from collage_engine.model.value_kinds import ValueKinds
from collage_engine.model.whole_numbers import is_whole
from collage_engine.records.graph import (
    KIND_ORDER,
    GraphRecord,
    ModelRecord,
    Node,
    OperatorNumber,
    OpKind,
    TensorType,
    Value,
    item_bytes,
)
from collage_engine.records.operators import OPERATORS, is_opaque
from collage_engine.support.errors import ModelError, UsageError, one_sentence, short_reason

_LOG = logging.getLogger(__name__)


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
    functions: Mapping[Any, Any] = field(repr=False)
    """The kernels that the importer wrote itself, by the Relax variables that calls name."""
    _calls: tuple[Any, ...] = field(repr=False)
    """By operator number, the Relax call as TVM imports it."""
    _constants: Mapping[int, Any] = field(repr=False)
    """By value index, the Relax constant that a value is."""
    defaults: tuple[str, ...] = ()
    """Inputs of the user's file that became constants, since it holds values for them."""
    kept: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    """The values that the file holds for inputs that stayed inputs all the same."""
    ir_version: int = 0
    """The version of ONNX's format in which the file is written."""
    described: dict[str, Any] = field(default_factory=dict, repr=False)
    """What the user's file says of the model, as ``description`` returns it."""
    _arrays: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    def constant(self, index: int) -> np.ndarray:
        """Return the values of a constant, which must not be written to.

        Raises:
            KeyError: The value is no constant.
        """
        if index not in self._arrays:
            self._arrays[index] = constant_array(self._constants[index])
        return self._arrays[index]

    def call(self, operator: int) -> Any:
        """Return an operator's Relax call, whose tensors are those of TVM's own module."""
        return self._calls[operator]

    def relax_value(self, index: int, known: Mapping[int, Any]) -> Any:
        """Return what ``known`` has for a value, by its index; of a constant, itself.

        Raises:
            KeyError: It is neither.
        """
        return known[index] if index in known else self._constants[index]

    def emit(
        self,
        builder: Any,
        operator: OperatorNumber,
        known: dict[int, Any],
        functions: Mapping[Any, Any] = MappingProxyType({}),
    ) -> None:
        """Emit an operator's call into another function.

        Args:
            builder: The block builder of the function.
            operator: The operator.
            known: By value index what stands for a value in the function; constants are in place.
                The operator's results are added.
            functions: What stands there for ``functions`` of the model.
        """
        node = self.graph.nodes[operator]
        arguments = [self.relax_value(i, known) for i in node.inputs]
        whole = builder.emit(_with_arguments(self._calls[operator], arguments, functions))
        if not isinstance(whole.ty, relax.TupleType):
            known[operator] = whole
            return
        for position, index in enumerate(node.outputs):
            if self.graph.is_used(index):
                known[index] = builder.emit(relax.TupleGetItem(whole, position))

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
    path: str = "the model",
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
    model, shapes = without_sequences(model, shapes, path, evaluate)
    set_shapes(model, shapes, path)
    onnx_nodes = len(model.graph.node)
    clean = clean_up(model, path)
    resolver = _resolved(clean, path, evaluate)
    calls = list(post_dfs(resolver.outputs))
    numbered = _numbered(calls, resolver)
    graph, lived = _records(calls, numbered, resolver, clean)
    record = ModelRecord(
        path=path,
        sha256=digest,
        nodes=graph.record.count_nodes(range(len(graph))),
        folded=tuple(n for n in clean.order if n not in lived),
        weights_bytes=sum(value.type.bytes for value in graph.record.constants),
        onnx_nodes=onnx_nodes,
        shapes=shapes,
    )
    values = graph.values
    named = {call.expr.args[0] for call in calls if _is_call_tir(call.expr)}
    return ImportedModel(
        record=record,
        onnx=clean.onnx,
        graph=graph,
        inputs=tuple((value.name, value.type) for value in graph.record.parameters),
        outputs=tuple(
            (name, values[i].type)
            for name, i in zip(graph.record.output_names, graph.record.outputs, strict=True)
        ),
        defaults=defaults,
        kept=kept,
        ir_version=ir_version,
        described=described,
        functions={g: f for g, f in resolver.prim_funcs.items() if g in named},
        _calls=tuple(call.expr for call in calls),
        _constants={i: tensor.expr for i, tensor in enumerate(numbered) if tensor.constant},
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
            resolver = Resolver(Frontend(clean.onnx, path, kinds.types, parts), path)
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


def _numbered(calls: list[RelaxCall], resolver: Resolver) -> list[Tensor]:
    """Return all tensors of the graph by value index: the calls' first results come first."""
    read = [input_ for call in calls for input_ in call.inputs]
    constants = [output for output in (*read, *resolver.outputs) if output.constant]
    further = [result for call in calls for result in call.results[1:]]
    firsts = [call.results[0] for call in calls]
    return [*firsts, *resolver.parameters, *dict.fromkeys(constants), *further]


def _records(
    calls: list[RelaxCall], numbered: list[Tensor], resolver: Resolver, clean: CleanModel
) -> tuple[DataflowGraph, set[str]]:
    """Return the dataflow graph's records, and the user's node names that live on in it."""
    index = {id(tensor): i for i, tensor in enumerate(numbered)}
    operators = {id(call): i for i, call in enumerate(calls)}
    origins = [_origins(call, resolver, clean) for call in calls]
    numbers = _numbers_of_nodes(origins)
    graph = clean.onnx.graph

    def value(tensor: Tensor, name: str = "") -> Value:
        return Value(
            index=index[id(tensor)],
            type=tensor.type,
            producer=None if tensor.call is None else operators[id(tensor.call)],
            constant=tensor.constant,
            name=name,
            onnx_value=tensor.onnx_value,
            largest=_largest(tensor) if tensor.constant else None,
        )

    lived: set[str] = set()
    nodes = []
    for number, call in enumerate(calls):
        come_from = origins[number]
        onnx_nodes = tuple(dict.fromkeys(name for each in come_from for name in each.names))
        lived.update(onnx_nodes)
        nodes.append(
            Node(
                index=operators[id(call)],
                op=call.op,
                attributes=call.attributes,
                inputs=tuple(index[id(i)] for i in call.inputs),
                results=tuple(map(value, call.results)),
                kind=_kind(call, resolver),
                name=onnx_nodes[0] if onnx_nodes else "",
                onnx_nodes=onnx_nodes,
                onnx_node=numbers[number],
                scope=come_from[0].scope if come_from else (),
                onnx_type=come_from[0].onnx_type if come_from and not is_opaque(call.op) else "",
            )
        )
    record = GraphRecord(
        nodes=tuple(nodes),
        parameters=tuple(
            value(parameter, given.name)
            for parameter, given in zip(resolver.parameters, graph.input, strict=True)
        ),
        constants=tuple(value(each, each.name) for each in numbered if each.constant),
        outputs=tuple(index[id(tensor)] for tensor in resolver.outputs),
        output_names=tuple(o.name for o in graph.output),
    )
    return DataflowGraph(record), lived


def _largest(constant: Tensor) -> int | None:
    """Return the largest magnitude of whole numbers of more than 8 bits; None of others."""
    kind = constant.type
    if not is_whole(kind) or item_bytes(kind.dtype) == 1 or not kind.elements:
        return None
    array = constant_array(constant.expr)
    return max(int(array.max()), -int(array.min()))


def _origins(call: RelaxCall, resolver: Resolver, clean: CleanModel) -> list[Op]:
    """Return the cleaned nodes that a call comes from; an opaque operator may hold several."""
    operator = resolver.operators.get(call.owner)
    nodes = () if operator is None else operator.nodes
    firsts = [next(o for o in node.output if o) for node in nodes] or [call.owner]
    return [clean.ops[first] for first in firsts if first in clean.ops]


def _numbers_of_nodes(origins: list[list[Op]]) -> list[int]:
    """Return the number of each call's ONNX node; nodes are numbered by their first calls."""
    united: dict[int, frozenset[int]] = {}
    for index, come_from in enumerate(origins):
        nodes = frozenset({-1 - index}).union(*(op.nodes for op in come_from))
        group = nodes.union(*(united.get(node, ()) for node in nodes))
        united.update(dict.fromkeys(group, group))
    numbers: dict[frozenset[int], int] = {}
    return [numbers.setdefault(united[-1 - index], len(numbers)) for index in range(len(origins))]


def _kind(call: RelaxCall, resolver: Resolver) -> OpKind:
    row = OPERATORS.get(call.op)
    if row is not None:
        return row.kind
    if _is_call_tir(call.expr):
        return _kind_of_loops(resolver.functions[call.expr.args[0].name_hint])
    return "opaque"


def _kind_of_loops(function: Any) -> OpKind:
    """Return what TVM reads off the loops of a kernel that the importer wrote itself."""
    annotated = relax.transform.AnnotateTIROpPattern()(tvm.IRModule({"f": function}))["f"]
    number = int(annotated.attrs["op_pattern"])
    return next((kind for kind, order in KIND_ORDER.items() if order == number), "opaque")


def _is_call_tir(expr: Any) -> bool:
    return isinstance(expr, tvm.ir.Call) and str(expr.op.name).startswith("relax.call_tir")


def _with_arguments(
    call: Any, arguments: list[Any], functions: Mapping[Any, Any] = MappingProxyType({})
) -> Any:
    """Return a call with other tensors, which come one by one, and other functions."""
    fresh = iter(arguments)

    def moved(argument: Any) -> Any:
        if is_tensor_tuple(argument):
            return relax.Tuple([moved(each) for each in argument.fields])
        if not is_tensor(argument):
            return argument
        if isinstance(argument.ty, relax.TupleType):
            return relax.Tuple([next(fresh) for _ in argument.ty.fields])
        return next(fresh)

    if takes_a_tuple(call):
        function = functions.get(call.args[0], call.args[0])
        args = [function, relax.Tuple(arguments), *call.args[2:]]
    else:
        args = [moved(argument) for argument in call.args]
    return tvm.ir.Call(call.op, args, call.attrs, call.ty_args)
