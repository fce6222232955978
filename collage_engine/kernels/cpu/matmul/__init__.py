"""States matrix products as problems and legalises them."""
