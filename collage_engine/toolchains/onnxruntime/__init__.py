"""Makes ONNX Runtime a toolchain, through its C API."""
