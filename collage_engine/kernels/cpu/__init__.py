"""Writes kernels for processors."""
