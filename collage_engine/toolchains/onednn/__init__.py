"""Makes oneDNN a toolchain: fused primitives, packed weights, one arena."""
