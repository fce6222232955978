"""OpenVINO as a toolchain, through its C API."""
