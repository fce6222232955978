"""Several runs: of one model for one artifact, or of many on machines that Dask joins."""
