"""cuDNN as a toolchain."""
