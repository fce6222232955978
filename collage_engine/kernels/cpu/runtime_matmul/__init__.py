"""Products of two values that are known only at run time."""
