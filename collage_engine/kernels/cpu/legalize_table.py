"""Which operators are legalised by us, and how to fall back on TVM's own legalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm.ir import Call, Expr, Op

from collage_engine.kernels.cpu.convolution import problem as conv
from collage_engine.kernels.cpu.convolution import transposed as spread
from collage_engine.kernels.cpu.dots import int8_problem as quantized
from collage_engine.kernels.cpu.matmul import legalize as matmul
from collage_engine.kernels.cpu.operators import hyperbolic
from collage_engine.kernels.cpu.operators import normalisation as norm
from collage_engine.kernels.target import Cpu

Legalize = Callable[[Any, Call], Expr]


def default(builder: relax.BlockBuilder, call: Call) -> Expr:
    """TVM's own legalisation."""
    return call.op.get_attr("FLegalize")(builder, call)


def table(cpu: Cpu) -> dict[str, Legalize]:
    """For ``relax.transform.LegalizeOps``; what ours do not take falls to TVM's."""
    own: dict[str, Any] = {
        "relax.nn.conv1d": conv.legalize,
        "relax.nn.conv2d": conv.legalize,
        "relax.nn.conv3d": conv.legalize,
        "relax.nn.conv1d_transpose": spread.legalize,
        "relax.nn.conv2d_transpose": spread.legalize,
        "relax.nn.conv3d_transpose": spread.legalize,
        "relax.matmul": matmul.legalize,
        "relax.cosh": hyperbolic.cosh,
        "relax.sinh": hyperbolic.sinh,
        "relax.quantize": quantized.quantize,
        "relax.nn.instance_norm": norm.legalize,
        "relax.nn.group_norm": norm.legalize,
    }

    def bind(function: Any) -> Legalize:
        def legalize(builder: relax.BlockBuilder, call: Call) -> Expr:
            result = function(builder, call, cpu)
            return default(builder, call) if result is None else result

        return legalize

    for name in own:
        Op.get(name)
    return {name: bind(function) for name, function in own.items()}
