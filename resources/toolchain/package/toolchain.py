"""What $title is, and what it takes."""

from pathlib import Path

from collage_engine.records.toolchain import ToolchainAbout
from collage_engine.toolchains.runtime.onnx_fed import OnnxSessionToolchain


class Toolchain(OnnxSessionToolchain):
    """A toolchain that is written in Python alone; partitions reach it as ONNX models."""

    about = ToolchainAbout(
        name="$name",
        title="$title",
        licence="Apache-2.0",  # of the library, as an SPDX expression
        install="pip install collage-$name",
    )
    packages = ("onnx",)  # the distributions that carry the library, whose version is measured with
    types = frozenset({"float32"})
    operators = frozenset({"Add", "MatMul", "Mul", "Relu", "Softmax"})  # empty: all of ONNX
    session = Path(__file__).with_name("session.py")
    module = "onnx"  # what session.py imports
