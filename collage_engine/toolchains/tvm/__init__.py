"""Holds the native toolchain: TVM's code generator with schedules of our own."""
