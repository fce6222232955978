"""Has one module for each step from a version of the store's schema to the next."""
