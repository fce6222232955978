"""Softmax, normalisations, means and pools."""
