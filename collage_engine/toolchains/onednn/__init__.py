"""oneDNN as a toolchain: fused primitives, packed weights, one arena."""
