"""Hostile files, made by structure-aware mutations; see ``tests/fuzz/campaign.py``."""
