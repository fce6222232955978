"""Writes softmax, normalisations, means and pools."""
