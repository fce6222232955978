"""Holds the code that all BLAS toolchains share; it computes products and convolutions."""
