"""Why a toolchain has no candidate with an operator, in ONNX types and toolchains' titles."""

from __future__ import annotations

from typing import get_args

import pytest

from collage_engine.planning.refusals import named_refusal_text, refusal_text
from collage_engine.records.refusal import Refusal, RefusalKind


@pytest.mark.parametrize("kind", get_args(RefusalKind))
def test_every_kind_has_words_that_name_the_toolchain_where_nothing_else_does(kind) -> None:
    refusal = Refusal(
        kind, "nn.softmax", "its detail", "Tango", "oneDNN" if kind == "calls" else ""
    )
    text = named_refusal_text(refusal)
    assert "{" not in text and "nn." not in text
    assert ("Tango" in text) == (kind not in ("device", "precision"))


def test_what_a_toolchain_says_is_shown_as_it_is() -> None:
    detail = "nn.conv2d: a BLAS is no {dancer}, honoured"
    refusal = Refusal("judged", "nn.conv2d", detail, "Tango")
    assert refusal_text(refusal) == detail
    assert named_refusal_text(refusal) == f"Tango: {detail}"


@pytest.mark.parametrize("kind", ["alone", "calls"])
def test_a_library_that_kernels_could_call_is_named(kind) -> None:
    refusal = Refusal(kind, "nn.softmax", "", "TVM", "oneDNN")
    expected = "TVM and oneDNN compute no group of operators with this Softmax together"
    assert refusal_text(refusal) == expected
