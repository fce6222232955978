"""Writes reports of a session: HTML for people, CSV, JSON and SVG for everything else."""
