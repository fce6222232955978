"""Lays out graphs and styles them as plain data, for the desktop and for reports; no Qt."""
