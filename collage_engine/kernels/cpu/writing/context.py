"""Collects the buffers and functions of one kernel, and whether threads share its loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.ir.expr import StringImm, TensorLoad
from tvm.ir.prim import expr as prim

from collage_engine.kernels.cpu.writing.contiguous import Views
from collage_engine.kernels.expressions import walk
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import Stmt, loop, parallel, seq
from collage_engine.records.graph import item_bytes

HANDING_CYCLES = 10_000
"""Cycles of work from which a kernel, and each loop of it, is shared with threads that spin while
they wait. Measured for whole kernels: anything up to 20,000 is as fast on three convolutional
networks, whether a cache line takes 55 or 350 ns between the processors; 40,000 is 2 to 4 % slower
and 80,000 up to 15 %."""


@dataclass
class Context:
    """The context holds what writing one kernel needs and collects."""

    cpu: Cpu
    views: Views = field(default_factory=Views)
    buffers: list[Any] = field(default_factory=list)
    """Buffers of the whole kernel, allocated where it starts."""
    threads: bool = True
    """Whether loops written now may be shared among threads (not inside such a loop)."""
    functions: list[str] = field(default_factory=list)
    """Functions in LLVM's language that the kernel calls, each with its own name."""
    data: Any = None
    weight: Any = None
    """``data`` and ``weight``: the buffers that the kernel's anchor reads, if there is one; a
    constant weight is packed as the kernel's rule wants it."""

    def share(self, work: float) -> Any:
        """Chooses between a loop that threads share and a serial one.

        Args:
            work: Elements moved, or vectors of multiply-adds: about cycles.

        Returns:
            ``tir_builder.parallel``, or ``loop`` where the work is too little to wake a thread for.
        """
        worth = self.threads and self.cpu.threads > 1 and work >= HANDING_CYCLES
        return parallel if worth else loop

    def share_products(self, count: float, dtype: str = "float32") -> Any:
        """Chooses as ``share`` does where ``count`` products are added up, a vector at a time."""
        return self.share(count // self.cpu.lanes(dtype))

    def kernel(self, body: Stmt) -> Stmt:
        """Returns the body after the buffers and views it uses."""
        whole = seq(*map(tirx.AllocBuffer, self.buffers), *self.views.declarations(), body)
        for text in dict.fromkeys(self.functions):
            nothing = tirx.const(0, "int32")
            whole = tirx.AttrStmt(nothing, "pragma_import_llvm", StringImm(text), whole)
        return whole


def lanes_of(cpu: Cpu, value: Expr, output: Any) -> int:
    """Returns the vector length for the widest type that takes part, at least 1."""
    sizes = [item_bytes(str(output.dtype))]
    sizes += [
        item_bytes(str(node.ty.dtype))
        for node in walk(value)
        if isinstance(node, (TensorLoad, prim.Cast))
    ]
    return max(1, cpu.vector_bytes // max(sizes))
