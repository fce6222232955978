"""The open model with its catalog: candidates and their keys."""
