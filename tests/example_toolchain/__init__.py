"""Holds a complete small toolchain as a model; ``toolchains/README.md`` explains it."""
