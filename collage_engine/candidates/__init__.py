"""The open model with its menu: candidates and their keys."""
