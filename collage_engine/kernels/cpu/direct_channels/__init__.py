"""Writes convolutions with output channels in the vector lanes."""
