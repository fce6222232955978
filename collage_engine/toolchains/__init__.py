"""Toolchains: what can compile and run a sub-graph. A toolchain knows no other toolchain."""
