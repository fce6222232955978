"""Makes TensorRT a toolchain."""
