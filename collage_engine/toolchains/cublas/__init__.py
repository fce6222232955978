"""Makes cuBLASLt a toolchain."""
