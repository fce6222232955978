"""OpenBLAS as a toolchain."""
