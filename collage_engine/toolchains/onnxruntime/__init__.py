"""ONNX Runtime as a toolchain, through its C API."""
