"""Operators that are legalised by us and written by the rules for whole programs."""
