"""Whole placements built and run: calibration, accuracy, confirmation."""
