"""The run: its list of stages, its document, and the jobs of the process that does it."""
