"""Measurements kept across models, runs and days."""
