"""Says which operators are legalised by us, and how the others fall to TVM's own legalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm.ir import Call, Expr, Op

from collage_engine.kernels.cpu.convolution import legalize as convolution
from collage_engine.kernels.cpu.matmul import legalize as matmul
from collage_engine.kernels.cpu.operators import normalisation, quantization
from collage_engine.kernels.target import Cpu

Legalize = Callable[[Any, Call], Expr]


def default(builder: relax.BlockBuilder, call: Call) -> Expr:
    """Legalises a call as TVM itself does."""
    return call.op.get_attr("FLegalize")(builder, call)


def table(cpu: Cpu) -> dict[str, Legalize]:
    """Returns the legalisations by operator name, for ``relax.transform.LegalizeOps``.

    A call that ours does not take is legalised by TVM's own.
    """
    own: dict[str, Any] = {
        "relax.nn.conv1d": convolution.legalize,
        "relax.nn.conv2d": convolution.legalize,
        "relax.nn.conv3d": convolution.legalize,
        "relax.matmul": matmul.legalize,
        "relax.quantize": quantization.quantize,
        "relax.nn.instance_norm": normalisation.legalize,
        "relax.nn.group_norm": normalisation.legalize,
    }

    def bind(function: Any) -> Legalize:
        def legalize(builder: relax.BlockBuilder, call: Call) -> Expr:
            result = function(builder, call, cpu)
            return default(builder, call) if result is None else result

        return legalize

    for name in own:
        Op.get(name)
    return {name: bind(function) for name, function in own.items()}
