"""Code that all BLAS toolchains share; it computes matrix products and convolutions."""
