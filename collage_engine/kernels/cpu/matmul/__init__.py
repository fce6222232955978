"""Matrix products: their problems and their legalisation."""
