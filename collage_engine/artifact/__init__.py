"""Writes, describes and runs the exported folder."""
