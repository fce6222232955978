"""Take a candidate's operators out of a model as a function that a toolchain can compile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from collage_engine.model.formats import by_value
from collage_engine.records.candidate import Candidate
from collage_engine.records.format import HOST, Formats
from collage_engine.records.graph import (
    OperatorNumber,
    OperatorSet,
    TensorType,
    ValueIndex,
    members,
    operator_set,
)
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel


def function_of(
    model: ImportedModel,
    instance: ToolchainInstance,
    operators: Iterable[int],
    symbol: str,
    spin: bool = False,
    takes: Formats | None = None,
    gives: Formats | None = None,
) -> Function:
    """Return some operators of a model as a function that a toolchain can compile.

    Args:
        model: The imported model.
        instance: The toolchain instance that is to compile it.
        operators: The operator numbers, from 0 to N−1.
        symbol: The name of the compiled function.
        spin: Whether idle threads of its runtime may spin.
        takes: Formats of inputs that are not plain, by operator number of their producer.
        gives: Formats of outputs that are not plain, by operator number.

    Raises:
        ToolchainError: No value leaves the sub-graph.
    """
    graph = model.graph
    numbers = tuple(map(OperatorNumber, operators))
    nodes = operator_set(numbers)
    inputs, outputs = graph.boundary(nodes)
    if not outputs:
        raise ToolchainError(f"no value leaves the sub-graph of operators {list(numbers)}")
    return Function(
        symbol,
        model,
        graph,
        nodes,
        inputs,
        outputs,
        instance,
        spin,
        _stored(by_value(graph, inputs, takes)),
        _stored(by_value(graph, outputs, gives)),
    )


def function_of_candidate(
    model: ImportedModel, candidate: Candidate, symbol: str, spin: bool = False
) -> Function:
    """Return a candidate of a model as a function; see ``function_of``."""
    takes, gives = candidate.takes, candidate.gives
    return function_of(model, candidate.instance, candidate.nodes, symbol, spin, takes, gives)


def _stored(formats: dict[int, str]) -> dict[int, str]:
    """Return the formats without the host's, in which a value is plain for a function."""
    return {index: name for index, name in formats.items() if name != HOST}


def relax_module(
    model: ImportedModel,
    nodes: OperatorSet,
    inputs: tuple[ValueIndex, ...],
    outputs: tuple[ValueIndex, ...],
) -> Any:
    """Return a Relax module whose ``main`` computes some values from others.

    The operators are the model's own, not lowered, and constants are inlined. PrimFuncs that the
    importer lowered itself are part of the module. One output is returned as a tensor, several as a
    tuple.

    Args:
        model: The imported model.
        nodes: The operators between inputs and outputs.
        inputs: The values that are parameters, in order.
        outputs: The values that are results, in order.
    """
    from tvm import relax
    from tvm.ir import Tuple

    builder = relax.BlockBuilder()
    functions = {
        var: builder.add_func(func, var.name_hint) for var, func in model.functions.items()
    }
    values = model.graph.values
    known: dict[int, Any] = {i: relax.Var(f"v{i}", relax_type(values[i].type)) for i in inputs}
    with builder.function("main", list(known.values())):
        with builder.dataflow():
            for operator in members(nodes):
                model.emit(builder, operator, known, functions)
            results = [model.relax_value(index, known) for index in outputs]
            result = builder.emit_output(results[0] if len(results) == 1 else Tuple(results))
        builder.emit_func_output(result)
    return builder.get()


def relax_type(kind: TensorType) -> Any:
    """Return the Relax type of a tensor."""
    from tvm import relax

    kind = kind.stored
    if kind.is_open:
        return relax.TensorType(None, kind.dtype, ndim=-1 if kind.any_rank else len(kind.shape))
    return relax.TensorType(kind.shape, kind.dtype)
