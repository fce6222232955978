"""Graph layout and scene as plain data, shared by the desktop and the report's SVG. No Qt."""
