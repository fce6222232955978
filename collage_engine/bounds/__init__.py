"""Lower bounds on latency: certified by bytes and operations, or resting on an assumption."""
