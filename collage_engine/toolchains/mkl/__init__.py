"""Makes Intel's MKL a toolchain."""
