"""A complete small toolchain, for whoever adds one of their own; see ``toolchains/README.md``."""
