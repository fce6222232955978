"""Intel's MKL as a toolchain."""
