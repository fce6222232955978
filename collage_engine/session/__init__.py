"""Session files: one SQLite database that holds everything about a model's placements."""
