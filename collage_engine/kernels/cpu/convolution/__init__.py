"""States convolutions as problems, legalises them, and makes their data ready."""
