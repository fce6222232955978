"""Writes kernels that bring a value from one format to another."""

from __future__ import annotations

from tvm import relax, tirx

from collage_engine.kernels.scheduler import Kernel
from collage_engine.kernels.target import cpu
from collage_engine.records.errors import ToolchainError
from collage_engine.records.format import TO_LOGICAL, TO_STORED, stored_type
from collage_engine.records.graph import TensorType
from collage_engine.toolchains.tvm.lowering import lower_module


def conversion(kind: TensorType, source: str, target: str, threads: int) -> Kernel:
    """Returns a scheduled kernel that brings a value from one stored form to another.

    It is a transposition in squares held in registers (``cpu/pointwise/transposed_copies``), shared
    by the threads where it is long enough.

    Args:
        kind: The value's logical type.
        source: The format that it has.
        target: The format that it gets.
        threads: How many threads may share the work on the processor.
    """
    rank = range(len(kind.shape))
    to_logical = TO_LOGICAL.get(source, tuple(rank))
    to_stored = TO_STORED.get(target, tuple(rank))
    axes = [to_logical[axis] for axis in to_stored]
    given = stored_type(kind, source)
    builder = relax.BlockBuilder()
    parameter = relax.Var("value", relax.TensorType(given.shape, given.dtype))
    with builder.function("main", [parameter]):
        with builder.dataflow():
            moved = builder.emit(relax.op.permute_dims(parameter, axes))
            result = builder.emit_output(moved)
        builder.emit_func_output(result)
    lowered = lower_module(builder.get(), cpu(threads))
    for variable, function in lowered.module.functions.items():
        if isinstance(function, tirx.PrimFunc):
            kernel = lowered.kernels[str(variable.name_hint)]
            if "global_symbol" not in kernel.function.attrs:
                return kernel
            bare = kernel.function.without_attr("global_symbol")
            return Kernel(bare, kernel.plain, kernel.schedule, kernel.reason)
    raise ToolchainError(f"there is nothing to convert in {kind} from {source} to {target}")
