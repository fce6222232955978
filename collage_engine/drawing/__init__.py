"""Lays out graphs, styles them and writes reports, for the desktop and for files; no Qt."""
