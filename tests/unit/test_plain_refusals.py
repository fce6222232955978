"""Why a toolchain cannot take an operator, in ONNX types and toolchains' titles."""

from __future__ import annotations

import pytest

from collage_engine.candidates.refusals import plain_reason
from collage_engine.model import onnx_forms
from collage_engine.records.graph import Node
from collage_engine.records.operator_titles import ONNX_TYPES
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.registry import get


def node(op: str, name: str = "n7") -> Node:
    return Node(index=7, form="call", op=op, name=name)


def instance(toolchain: str, **options: str) -> ToolchainInstance:
    return ToolchainInstance(toolchain=toolchain, config=tuple(options.items()))


def title(name: str) -> str:
    return get(name).about.title


@pytest.mark.parametrize(
    ("reason", "op", "toolchain", "expected"),
    [
        ("a BLAS computes no take", "take", "openblas", "OpenBLAS does not compute Gather"),
        (
            "a BLAS computes no nn.layer_norm",
            "nn.layer_norm",
            "mkl",
            "{mkl} does not compute LayerNormalization",
        ),
        (
            "take: the oneDNN runtime takes float32, not int64",
            "take",
            "onednn",
            "Gather: the oneDNN runtime takes float32, not int64",
        ),
        ("oneDNN has no greater", "greater", "onednn", "oneDNN has no Greater"),
        (
            "expand_dims: sgemm computes float32, not int64",
            "expand_dims",
            "openblas",
            "Unsqueeze: OpenBLAS computes float32, not int64",
        ),
        (
            "openblas.conv: nn.conv2d 'n7': no kernel layout HWIO",
            "nn.conv2d",
            "openblas",
            "Conv: no kernel layout HWIO",
        ),
        (
            "nn.relu: no matrix product to do it along with",
            "nn.relu",
            "openblas",
            "Relu: only together with a matrix product or a convolution",
        ),
        (
            "op: nn.softmax 'n7' is an operator of kind anchor, which this rule does not take by "
            "itself",
            "nn.softmax",
            "openblas",
            "OpenBLAS does not take Softmax by itself",
        ),
        (
            "it returns no values whose size depends on the data",
            "onnx:NonZero",
            "openvino",
            "OpenVINO returns no values whose size depends on the data",
        ),
        ("oneDNN has no onnx:NonZero", "onnx:NonZero", "onednn", "oneDNN has no NonZero"),
    ],
)
def test_a_reason_has_no_internal_names(reason, op, toolchain, expected) -> None:
    found = plain_reason(reason, node(op), instance(toolchain))
    assert found == expected.format(mkl=title("mkl"))


def test_a_word_that_is_also_an_operator_stays() -> None:
    """``take`` is the graph's name of Gather, and a verb."""
    reason = "take: a library does not take it with two indices"
    found = plain_reason(reason, node("take"), instance("onednn"))
    assert found == "Gather: a library does not take it with two indices"


@pytest.mark.parametrize(
    "reason",
    [
        "no partition with it would call onednn",
        "op: nn.softmax 'n7' is an operator of kind anchor, which this rule does not take by "
        "itself",
    ],
)
def test_a_library_that_kernels_could_call_is_named(reason) -> None:
    found = plain_reason(reason, node("nn.softmax"), instance("tvm", library="onednn"))
    assert found == "TVM and oneDNN compute no group of operators with this Softmax together"


def test_a_toolchain_from_elsewhere_keeps_its_words() -> None:
    found = plain_reason("my library is for images", node("nn.conv2d"), instance("of_another"))
    assert found == "my library is for images"


@pytest.mark.parametrize("op", [op for op in ONNX_TYPES if "." in op])
def test_names_with_a_dot_are_translated_wherever_they_stand(op) -> None:
    found = plain_reason(f"reads what {op} gives", node("add"), instance("onednn"))
    assert found == f"reads what {ONNX_TYPES[op]} gives"


def test_an_operator_is_called_as_it_is_written() -> None:
    written = {
        name: kind for name, kind in onnx_forms.SAME_INPUTS.items() if name != "nn.dropout"
    }  # in inference a Dropout is written as an Identity
    assert written == {name: ONNX_TYPES.get(name) for name in written}
