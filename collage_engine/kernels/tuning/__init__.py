"""Tunes TVM's kernels: parameters of our own schedules, and MetaSchedule."""
