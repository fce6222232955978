"""Serves the engine as JSON-RPC 2.0, one message a line, over standard input and output."""
