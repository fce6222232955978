"""Elementwise programs, copies and transpositions."""
