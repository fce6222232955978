"""Writes 3×3 convolutions by Winograd's method."""
