"""Holds what the writers share: register tiles, epilogues, transposes and costs."""
