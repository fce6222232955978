"""Whole placements built and run: calibration, accuracy, refinement, confirmation."""
