"""Holds the panels around the graph; each takes a document and a theme, and listens."""
