"""Quantised composites for NVIDIA devices."""
