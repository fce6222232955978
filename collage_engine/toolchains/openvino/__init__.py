"""Makes OpenVINO a toolchain, through its C API."""
