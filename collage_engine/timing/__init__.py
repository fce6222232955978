"""Measures candidates in isolation: compiled, checked and timed in a child process."""
