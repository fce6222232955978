"""Holds a complete small toolchain, for whoever adds one; ``toolchains/README.md`` explains it."""
