"""Holds the toolchains, each of which can compile and run sub-graphs and knows no other one."""
