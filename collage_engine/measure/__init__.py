"""What candidates cost: lowered, checked, timed in a child process, and remembered."""
