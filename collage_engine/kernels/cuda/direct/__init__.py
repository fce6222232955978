"""Writes convolutions with few channels a group, without matrix tiles."""
