"""Writes channels-first convolutions with positions in the vector lanes."""
