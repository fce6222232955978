"""Holds what the window knows of one open document, without widgets: one part per subject."""
