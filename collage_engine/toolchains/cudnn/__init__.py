"""Makes cuDNN a toolchain."""
