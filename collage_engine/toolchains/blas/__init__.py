"""Holds the code that all BLAS toolchains share; it computes one product a call."""
