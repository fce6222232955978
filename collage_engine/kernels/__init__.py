"""Kernels of our own for TVM: rules, plans, and the tuner that compares them."""
