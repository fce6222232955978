"""Writes products of 8-bit and bfloat16 numbers, several channels an instruction."""
