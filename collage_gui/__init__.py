"""The desktop: a window onto an engine that runs in another process. Computes nothing itself."""
