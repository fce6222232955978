"""Channels-first convolutions with positions in the vector lanes."""
