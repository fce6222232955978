"""Makes OpenBLAS a toolchain."""
