"""Python code that an artifact runs before its module is loaded."""

LOADED = True
