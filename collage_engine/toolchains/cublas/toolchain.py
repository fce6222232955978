"""Runs matrix products with fused epilogues on NVIDIA devices, by cuBLASLt."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from collage_engine.machine.cuda import generation
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import Pattern, anything, op
from collage_engine.records.graph import Node, Value
from collage_engine.records.precision import BFLOAT16, FLOAT16, TF32
from collage_engine.records.toolchain import ToolchainAbout
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.runtime import chains
from collage_engine.toolchains.runtime.cuda import FIRST_TF32, LICENCE, CudaToolchain
from collage_engine.toolchains.runtime.places import Places
from collage_engine.toolchains.runtime.products import Dialect, Product

TYPES = ("float32", "float16", "bfloat16")
"""Element types of operands; sums are float32."""
ROUNDED = {"tf32": "tf32", "float16": "fast float16", "bfloat16": "fast bfloat16"}
"""cuBLASLt's name of the rounding of float32 operands inside a product, by the run's precision."""


def layout_of(
    left: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...]
) -> dict[str, int]:
    """Return the sizes of ``left · right``, and elements between the matrices of a batch.

    Raises:
        UnsupportedError: One strided batch cannot hold the product.
    """
    if 0 in (*left, *right, *result):
        raise UnsupportedError("MatMul: empty matrices")
    a = (1, *left) if len(left) == 1 else left
    b = (*right, 1) if len(right) == 1 else right
    m, k, n = a[-2], a[-1], b[-1]
    many_a, many_b = prod(a[:-2]), prod(b[:-2])
    if many_b == 1:
        # There is one right-hand matrix: all rows of the left ones are rows of one matrix.
        return {"m": m * many_a, "n": n, "k": k, "batch": 1}
    rank = max(len(a), len(b)) - 2
    lead_a = (1,) * (rank - len(a) + 2) + tuple(a[:-2])
    lead_b = (1,) * (rank - len(b) + 2) + tuple(b[:-2])
    if many_a == 1 or lead_a == lead_b:
        strides = {"stride_a": 0 if many_a == 1 else m * k, "stride_b": k * n}
        strides |= {"stride_c": m * n, "stride_d": m * n}
        return {"m": m, "n": n, "k": k, "batch": many_b, **strides}
    raise UnsupportedError("MatMul: a batch that is broadcast along some of its axes only")


def check_product(graph: DataflowGraph, node: Node) -> None:
    """Check that cuBLASLt has a product.

    Raises:
        UnsupportedError: It has none; the text says why.
    """
    left, right = (graph.values[i].type for i in node.inputs)
    if left.dtype not in TYPES or right.dtype != left.dtype:
        raise UnsupportedError(f"MatMul: cuBLAS multiplies no {left.dtype} by {right.dtype}")
    if node.type.dtype != left.dtype:
        raise UnsupportedError(f"MatMul: cuBLAS gives no {node.type.dtype} from {left.dtype}")
    layout_of(left.shape, right.shape, node.type.shape)


def swaps_matrices(graph: DataflowGraph, value: Value) -> bool:
    """Tell whether a permute_dims exchanges the last two axes and leaves the others."""
    node = graph.nodes[value.index]
    rank = len(node.type.shape)
    axes = node.attributes.get("axes")
    order = [int(a) % rank for a in axes] if axes else list(reversed(range(rank)))
    return rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2]


def steps(places: Places, product: Product, precision: str) -> list[dict[str, Any]]:
    """Return the one step of a product."""
    graph, node, bound = places.graph, product.anchor, product.bindings
    kind = node.type.dtype
    if product.epilogue == "gelu_erf" and kind not in ("float16", "bfloat16"):
        # GELU by tanh is closer to that by erf than half precision can tell.
        raise UnsupportedError(f"Gelu: cuBLAS computes it by tanh, too far off in {kind}")
    shapes, transposed = {}, {}
    for side in ("left", "right"):
        shape = graph.values[bound[side]].type.shape
        transposed[side] = f"transposed_{side}" in bound
        shapes[side] = (*shape[:-2], shape[-1], shape[-2]) if transposed[side] else shape
    if transposed["left"] and prod(shapes["left"][:-2]) != 1 == prod(shapes["right"][:-2]):
        raise UnsupportedError("MatMul: a batch of transposed matrices by one matrix")
    step: dict[str, Any] = {
        "name": node.name or f"matmul {node.index}",
        **layout_of(shapes["left"], shapes["right"], node.type.shape),
        "dtype": kind,
        "compute": ROUNDED.get(precision, "float32") if kind == "float32" else "float32",
        "transpose_a": transposed["left"],
        "transpose_b": transposed["right"],
        "a": places.read(bound["left"]),
        "b": places.read(bound["right"]),
        "d": places.write(product.result),
        "epilogue": product.epilogue.removesuffix("_erf"),
    }
    if product.bias is not None:
        step["bias"] = places.read(product.bias)
    if product.residual is not None:
        step["c"] = places.read(product.residual)
    return [step]


def _operand(side: str) -> Pattern:
    return op(
        "permute_dims", anything(side), where=swaps_matrices, name=f"transposed_{side}"
    ) | anything(side)


def keeps_rows(graph: DataflowGraph, value: Value) -> bool:
    """Tell whether a reshape leaves rows whole, as exporters write one behind a product."""
    given = graph.values[graph.nodes[value.index].inputs[0]].type.shape
    return len(given) > 1 < len(value.type.shape) and given[-1] == value.type.shape[-1]


DIALECT = Dialect(
    name="cuBLAS",
    takes="matrix products",
    anchor=op("matmul", _operand("left"), _operand("right"), name="anchor"),
    channel_axis=-1,
    epilogues={
        "relu": lambda x: op("nn.relu", x),
        "gelu": lambda x: op("nn.gelu_tanh", x) | chains.gelu_tanh(x),
        "gelu_erf": lambda x: op("nn.gelu", x) | chains.gelu_erf(x),
    },
    check=check_product,
    steps=steps,
    glue=lambda x: op("reshape", x, where=keeps_rows),
)
"""Products with bias, residual sum and activation; either operand may be read transposed."""


FIRST_HALF = 70
"""Architecture (Volta) whose tensor cores first took float16 (CUDA C++ Programming Guide, compute
capabilities)."""


class CublasToolchain(CudaToolchain):
    """cuBLASLt with bias, ReLU, GELU and residual sums as epilogues; algorithms chosen by time."""

    about = ToolchainAbout(
        name="cublas",
        title="cuBLAS",
        licence=LICENCE,
        targets=("cuda",),
        install="pip install 'collage-explorer[cuda]'",
        colour="#cc79a7",
        letters="CB",
        pattern="grid",
    )
    depends = ("collage_engine.partition.patterns",)
    dialect = DIALECT
    pattern = DIALECT.pattern
    main = Path(__file__).parent / "src" / "cublas_module.cc"
    wheels = ("nvidia-cublas", "nvidia-cublas-cu13")
    library_name = "libcublasLt.so.13"
    version_header, version_macros = "cublas_api.h", ("CUBLAS_VER_", "PATCH")
    choice = "algorithm"

    def rounds_to(self, architecture: str, precision: str) -> str | None:
        """Return the precision to which float32 operands are rounded inside a product.

        cuBLASLt rounds to whichever precision a run admits, where the device computes in it.
        """
        first = {TF32: FIRST_TF32, BFLOAT16: FIRST_TF32, FLOAT16: FIRST_HALF}.get(precision)
        return precision if first and generation(architecture) >= first else None
