"""Building the best covers and all baselines, confirming them end to end, and exporting."""
