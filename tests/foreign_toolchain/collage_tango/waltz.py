"""Waltz runs ONNX models by the reference evaluator of the package onnx, in Python alone."""

from __future__ import annotations

from pathlib import Path

from collage_engine.records.toolchain import ToolchainAbout
from collage_engine.toolchains.runtime.onnx_fed import OnnxSessionToolchain


class WaltzToolchain(OnnxSessionToolchain):
    """It is slow, and takes four operators only so that others have something to do too."""

    about = ToolchainAbout(
        name="waltz", title="Waltz", licence="Apache-2.0", install="pip install onnx"
    )
    packages = ("onnx",)
    types = frozenset({"float32"})
    operators = frozenset({"Relu", "MatMul", "Add", "Softmax"})
    session = Path(__file__).with_name("waltz_session.py")
    module = "onnx"
