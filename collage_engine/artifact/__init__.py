"""The exported folder: writing it, describing it, running it."""
