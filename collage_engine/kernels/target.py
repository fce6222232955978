"""Describes the processor that kernels are written for: vector width, registers, caches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from collage_engine.machine.device import cache_bytes, cpu_target, processor
from collage_engine.records.graph import item_bytes

BYTES_PER_CYCLE = 5.0
"""Bytes that one core moves from or to memory in a cycle. Chosen: 15 to 20 GB/s at 3 to 4 GHz, what
any server or desktop reaches. It decides whether Winograd's method is expected to pay where an
image has so few tiles that the weight arrives more slowly than it is used, and from how much work
on a kernel is shared among threads. It is not measured: a default
plan is part of what an instance compiles, which every process, every machine of a pool and every
later day has to compile alike. Tuning compares what it decides between."""

LATENCY = 4
"""Cycles after which the sum of an addition or a multiply-add can be added to again (VADDPS and
VFMADD231PS on Intel since Skylake and AMD since Zen 3; A. Fog, "Instruction tables")."""
SUMS_IN_FLIGHT = LATENCY * 2
"""Vectors of sums that keep a processor busy: two multiply-adds begin in each cycle (the same)."""
MOST_REGISTERS = 32
"""Vector registers of the instruction sets that have most: AVX-512 and AArch64."""
MOST_LANES = 16
"""float32 numbers in a register of AVX-512, the widest."""


@dataclass(frozen=True)
class Cpu:
    """What the kernel rules need to know of a processor."""

    vector_bytes: int
    """Bytes of the widest vector register."""
    registers: int
    """Number of vector registers that the code generator can name."""
    l1_bytes: int
    l2_bytes: int
    """``l1_bytes`` and ``l2_bytes``: data that one core's first- and second-level cache hold."""
    threads: int = 1
    """Number of threads among which a kernel may share its loops."""
    vnni: bool = False
    """Whether one instruction adds four 8-bit products to each lane of a full vector."""
    bfloat16: bool = False
    """Whether one instruction adds two bfloat16 products to each lane of a full vector."""
    halves: bool = False
    """Whether full vectors are multiplied in two halves: one multiply-add a cycle, not two."""

    @property
    def half_l2(self) -> int:
        """Returns the bytes of the second-level cache that data may take which is used again.

        The other half is left to what streams through.
        """
        return self.l2_bytes // 2

    def lanes(self, dtype: str) -> int:
        """Return the elements of one vector."""
        return max(1, self.vector_bytes // item_bytes(dtype))


def runs_in_halves(model: str, flags: frozenset[str]) -> bool:
    """Return whether a processor has AVX-512 on 256-bit pipes.

    That is Zen 4, AMD's family 25 (Software Optimization Guide for the AMD Zen 4 Microarchitecture,
    2.11: floating-point unit).
    """
    return "avx512f" in flags and "AuthenticAMD 25 " in model


@lru_cache(maxsize=8)
def cpu(threads: int = 1) -> Cpu:
    """Return this machine's processor as the code generator sees it.

    Args:
        threads: The number of threads that kernels may use.
    """
    import tvm
    from tvm.target import codegen

    target = tvm.target.Target(cpu_target())
    with target:
        wide = codegen.llvm_cpu_has_features("avx512f", target)
        medium = codegen.llvm_cpu_has_features("avx2", target)
        # Before LLVM 22 the intrinsics had other operand types, or were not tried.
        vnni = wide and codegen.llvm_cpu_has_features("avx512vnni", target)
        vnni = bool(vnni and codegen.llvm_version_major() >= 22)
        bfloat16 = wide and codegen.llvm_cpu_has_features("avx512bf16", target)
        bfloat16 = bool(bfloat16 and codegen.llvm_version_major() >= 22)
    arm = "aarch64" in str(codegen.llvm_get_system_triple())
    vector_bytes = 64 if wide else 32 if medium else 16
    registers = 32 if wide or arm else 16
    l1, l2 = cache_bytes(1, 32 << 10), cache_bytes(2, 512 << 10)
    features = processor()
    halves = wide and runs_in_halves(features.model, frozenset(features.flags))
    return Cpu(vector_bytes, registers, l1, l2, threads, vnni, bfloat16, halves)
