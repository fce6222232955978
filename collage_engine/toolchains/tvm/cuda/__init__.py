"""Computes quantised composites on NVIDIA devices."""
