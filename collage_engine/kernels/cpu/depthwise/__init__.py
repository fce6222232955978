"""Writes depthwise convolutions."""
