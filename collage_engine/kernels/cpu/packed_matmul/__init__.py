"""Products with a constant matrix that is packed by blocks of columns."""
