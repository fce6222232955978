"""Isolated measuring: candidates compiled, checked and timed in a child process."""
