"""The way through: import, enumerate, measure, search, build, confirm, export."""
