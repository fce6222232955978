"""TensorRT and TensorRT-RTX as one toolchain."""
