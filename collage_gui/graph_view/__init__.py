"""Draws the graph: arrays for painting, one painter, the view, its minimap."""
