"""Makes CUTLASS a toolchain."""
