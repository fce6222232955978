"""From sub-graphs and covers to modules that run, and the true values to check them against."""
