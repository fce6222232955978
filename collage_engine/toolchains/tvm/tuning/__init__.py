"""Holds TVM's tuner, as the toolchain contract asks for it."""
