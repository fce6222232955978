"""What is kept: measurements in SQLite with their keys; documents and their session files."""
