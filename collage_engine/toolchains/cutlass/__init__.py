"""CUTLASS as a toolchain."""
