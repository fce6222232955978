"""Makes TensorRT and TensorRT-RTX one toolchain."""
