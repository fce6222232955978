"""Kernels keep their sums on a stack that is aligned to whole vectors."""

from __future__ import annotations

import re

import pytest
from tvm import tirx

from collage_engine.kernels.stack_buffers import LINE_BYTES
from collage_engine.kernels.tir_builder import allocate, load, local, loop, parallel, seq, store
from tests.support.kernel_checks import build_all

ROWS, WIDTH = 8, 64


def sums_of_rows(shared: bool) -> tirx.PrimFunc:
    """Adds the rows of a matrix, each thread or the caller those of its columns."""
    rows = tirx.decl_buffer([ROWS, WIDTH], "float32", "rows")
    sums = tirx.decl_buffer([WIDTH], "float32", "sums")

    def columns(half: object) -> object:
        acc = local([WIDTH // 2])
        at = half * (WIDTH // 2)
        return seq(
            allocate(acc),
            loop(WIDTH // 2, lambda j: store(acc, 0.0, j)),
            loop(
                ROWS,
                lambda i: loop(
                    WIDTH // 2, lambda j: store(acc, load(acc, j) + load(rows, i, at + j), j)
                ),
            ),
            loop(WIDTH // 2, lambda j: store(sums, load(acc, j), at + j)),
        )

    body = (parallel if shared else loop)(2, columns)
    return tirx.PrimFunc([rows, sums], body)


@pytest.mark.parametrize("shared", [False, True])
def test_sums_lie_on_a_stack_aligned_for_the_longest_vectors(shared: bool) -> None:
    code = build_all(sums=sums_of_rows(shared)).inspect_source("ll")
    assert "TVMBackendAllocWorkspace(" not in code, "sums are no piece of the workspace"
    functions = re.findall(r"^define .*?^}", code, re.MULTILINE | re.DOTALL)
    working = [text for text in functions if " fadd " in text]
    assert working
    for text in working:
        assert f"alloca <{LINE_BYTES} x i8>, align {LINE_BYTES}" in text
