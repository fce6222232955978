"""cuBLASLt as a toolchain."""
