"""Writes products of matrices, and convolutions as products, by tiles in shared memory."""
