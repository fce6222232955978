"""Measuring on several machines, carried by Dask; ``README.md`` in this folder explains it."""
