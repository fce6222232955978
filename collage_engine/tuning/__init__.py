"""Better kernels for candidates that could matter."""
