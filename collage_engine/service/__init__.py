"""The engine as a service: JSON-RPC 2.0, one message a line, over standard input and output."""
