"""Writes TVM's kernels for NVIDIA devices."""
