"""Reports of a session: HTML for people, CSV, JSON and SVG for everything else."""
