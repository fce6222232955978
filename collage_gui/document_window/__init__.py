"""Shows one document: its graph, its panels, and the controllers between them."""
