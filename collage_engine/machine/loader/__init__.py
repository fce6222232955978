"""Loaders that every artifact carries: a Python file and a C++ source, free of the engine."""
