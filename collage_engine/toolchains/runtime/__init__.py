"""Holds what the C++ runtimes share: the module base, the builder and its cache."""
