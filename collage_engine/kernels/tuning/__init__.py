"""Tunes TVM's kernels: the parameters of our own schedules."""
