"""Convolutions: their problems, their legalisation, and their data made ready."""
