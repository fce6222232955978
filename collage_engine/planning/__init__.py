"""From documents to search problems and back: placements, pins, limits and explanations."""
