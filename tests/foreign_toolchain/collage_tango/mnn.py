"""MNN (PyPI) in Python alone: the proof that a library needs no C++ to take part."""

from __future__ import annotations

from pathlib import Path

from collage_engine.records.toolchain import ToolchainAbout
from collage_engine.toolchains.runtime.onnx_fed import OnnxSessionToolchain


class MnnToolchain(OnnxSessionToolchain):
    """It takes what convolutional networks consist of, in float32."""

    about = ToolchainAbout(name="mnn", title="MNN", licence="Apache-2.0", install="pip install MNN")
    packages = ("MNN",)
    types = frozenset({"float32"})
    operators = frozenset(
        [
            "Add",
            "AveragePool",
            "BatchNormalization",
            "Clip",
            "Concat",
            "Conv",
            "Flatten",
            "Gemm",
            "GlobalAveragePool",
            "MatMul",
            "MaxPool",
            "Mul",
            "Relu",
            "Reshape",
            "Sigmoid",
            "Softmax",
            "Sub",
            "Transpose",
        ]
    )
    session = Path(__file__).with_name("mnn_session.py")
    module = "MNN"
