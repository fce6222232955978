"""Kernels for processors."""
