"""Convolutions with output channels in the vector lanes."""
