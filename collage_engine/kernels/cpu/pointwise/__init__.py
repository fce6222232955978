"""Writes elementwise programs, copies and transpositions."""
