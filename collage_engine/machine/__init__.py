"""This machine: its processors, its measured limits, and the one way to run work in a child."""
