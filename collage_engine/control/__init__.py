"""How a run is steered: its budget, its cancellation and the progress it reports."""
