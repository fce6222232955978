"""Several runs of one model for one artifact: for several shapes, or threads and instances."""
